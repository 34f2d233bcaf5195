#pragma once

#include "../include/tandem_ascend.h"

/* What the ops that draw have in common: where the filters cut each row, and sums over what is
 * left. It is no op of its own.
 *
 * logits float [rows, vocab] with `stride` floats from row to row, vocab up to 2^24; temperature,
 * top_p, min_p (or NULL) float and top_k int32 [rows], as in `sample`; filtered: whether min-p,
 * top-p or top-k are looked at; with_all: whether log_all is computed.
 *
 * A row is measured in chunks of `chunk` tokens, a power of two from 256 to 65536, of which there
 * are splits = ceil(vocab / chunk), at most 256.
 *
 * Scratch, whose contents do not matter: peaks uint64 [rows, splits]; state int64 [2, rows, 6];
 * weights int64 [3, rows, 256]; counts int32 [3, 3, rows, 256]; parts int32 [2, rows, splits]; sums
 * uint64 [2, rows, splits].
 *
 * Results: places int32 [rows, 6] and numbers float [rows, 4], see _distribution.h; kept int64
 * [rows, splits], weight that is left of each chunk. */
TANDEM_API int32_t tandem_ascend_distribution(
    const tandem_ascend_device *device, void *stream, const float *logits, const float *temperature,
    const float *top_p, const int32_t *top_k, const float *min_p, uint64_t *peaks, int64_t *state,
    int64_t *weights, int32_t *counts, int32_t *parts, uint64_t *sums, int32_t *places,
    float *numbers, int64_t *kept, int64_t rows, int64_t vocab, int64_t stride, int64_t chunk,
    int32_t filtered, int32_t with_all);

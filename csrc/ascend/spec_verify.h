#pragma once

#include "../include/tandem_ascend.h"

/* spec_verify, after `tandem_ascend_distribution` with all logs: the token of each row, whether it
 * is the draft that the row judges, and its log-probabilities. logits as there; seed, position
 * int64 [rows]; forced, draft_row int32 [rows]; drafts int32 [M]; proposal int32 [M, vocab];
 * places, numbers and kept are what it gave; coupled: drafts are not rejected, rows draw as
 * `sample` does. Scratch: offers int64 [2, rows, splits]; sums int64 [3, rows, splits]; special
 * int64 [rows, 2]. Returns token, accepted int32, raw and logprob float [rows]; vocab is at most
 * 2^23. */
TANDEM_API int32_t tandem_ascend_spec_verify(
    const tandem_ascend_device *device, void *stream, const float *logits, const int64_t *seed,
    const int64_t *position, const int32_t *forced, const int32_t *drafts, const int32_t *proposal,
    const int32_t *draft_row, const int32_t *places, const float *numbers, const int64_t *kept,
    int64_t *offers, int64_t *sums, int64_t *special, int32_t *token, int32_t *accepted, float *raw,
    float *logprob, int64_t rows, int64_t vocab, int64_t stride, int64_t chunk, int32_t coupled);

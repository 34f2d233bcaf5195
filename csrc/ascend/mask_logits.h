#pragma once

#include "../include/tandem_ascend.h"

/* mask_logits: -inf where the bit of a token is 0; other logits are not touched. Bit v % 32 of word
 * v / 32 of a row belongs to token v. logits float [rows, vocab] with `stride` floats from row to
 * row; bits int32 [rows, (vocab + 31) / 32]. */
TANDEM_API int32_t tandem_ascend_mask_logits(const tandem_ascend_device *device, void *stream,
                                             float *logits, const int32_t *bits, int64_t rows,
                                             int64_t vocab, int64_t stride);

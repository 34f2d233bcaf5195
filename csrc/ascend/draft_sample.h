#pragma once

#include "../include/tandem_ascend.h"

/* draft_sample, after `tandem_ascend_distribution`: the integer weights that are left of each row,
 * 0 throughout one without a distribution, and a token by their masses. logits as there; seed,
 * position int64 [rows]; places, numbers and kept are what it gave; coupled: the request's own
 * stream. Scratch: masses int64 [rows, splits]. Returns token int32 [rows] and weight int32 [rows,
 * vocab]; vocab is at most 2^23. */
TANDEM_API int32_t tandem_ascend_draft_sample(const tandem_ascend_device *device, void *stream,
                                              const float *logits, const int64_t *seed,
                                              const int64_t *position, const int32_t *places,
                                              const float *numbers, const int64_t *kept,
                                              int64_t *masses, int32_t *token, int32_t *weight,
                                              int64_t rows, int64_t vocab, int64_t stride,
                                              int64_t chunk, int32_t coupled);

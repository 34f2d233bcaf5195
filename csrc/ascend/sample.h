#pragma once

#include "../include/tandem_ascend.h"

/* sample, after `tandem_ascend_distribution` with all logs: a token of each row by the weights that
 * are left, and its log-probabilities. logits as there; seed, position int64 [rows]; places,
 * numbers and kept are what it gave. Returns token int32, raw and logprob float [rows]. */
TANDEM_API int32_t tandem_ascend_sample(const tandem_ascend_device *device, void *stream,
                                        const float *logits, const int64_t *seed,
                                        const int64_t *position, const int32_t *places,
                                        const float *numbers, const int64_t *kept, int32_t *token,
                                        float *raw, float *logprob, int64_t rows, int64_t vocab,
                                        int64_t stride, int64_t chunk);

#pragma once

#include "../include/tandem_ascend.h"

/* process_logits, after `tandem_ascend_distribution`: log-probabilities of what is left of each
 * row, -inf elsewhere, NaN throughout a row without a distribution. logits as there; out float
 * [rows, vocab]. */
TANDEM_API int32_t tandem_ascend_process_logits(const tandem_ascend_device *device, void *stream,
                                                const float *logits, const int32_t *places,
                                                const float *numbers, float *out, int64_t rows,
                                                int64_t vocab, int64_t stride, int64_t chunk);

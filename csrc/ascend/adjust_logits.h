#pragma once

#include "../include/tandem_ascend.h"

/* adjust_logits: value[i] is added to logits[row[i], token[i]]; values for one place are added up
 * in the order of the list, then to the logit. Entries of row -1 are padding. logits float [..,
 * vocab] with `stride` floats from row to row; row, token int32 [entries]; value float [entries].
 */
TANDEM_API int32_t tandem_ascend_adjust_logits(const tandem_ascend_device *device, void *stream,
                                               float *logits, const int32_t *row,
                                               const int32_t *token, const float *value,
                                               int64_t entries, int64_t stride);

#pragma once

#include "../include/tandem_ascend.h"

/* penalize_logits: of entry i of the list, x = logits[row[i], token[i]] becomes x / repetition[i]
 * where x > 0, else x * repetition[i], less minus[i]. Entries of row -1 are padding; each place
 * occurs once. logits float [.., vocab] with `stride` floats from row to row; row, token int32
 * [entries]; repetition, minus float [entries]. */
TANDEM_API int32_t tandem_ascend_penalize_logits(const tandem_ascend_device *device, void *stream,
                                                 float *logits, const int32_t *row,
                                                 const int32_t *token, const float *repetition,
                                                 const float *minus, int64_t entries,
                                                 int64_t stride);

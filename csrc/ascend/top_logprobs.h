#pragma once

#include "../include/tandem_ascend.h"

/* top_logprobs, after `tandem_ascend_topk_index`: its choice in the order (value descending, index
 * ascending). values float [rows, width]; index int32 [rows, n], ascending, -1 at the end; ids
 * int32 and logprobs float [rows, n], filled with -1 and -inf. n from 1 to 16384. */
TANDEM_API int32_t tandem_ascend_top_logprobs(const tandem_ascend_device *device, void *stream,
                                              const float *values, const int32_t *index,
                                              int32_t *ids, float *logprobs, int64_t rows,
                                              int64_t width, int64_t n);

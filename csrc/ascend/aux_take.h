#pragma once

#include "../include/tandem_ascend.h"

/* aux.take: out[t, i] = a[t, index[t, i]], -1 where the index is negative.
 * a: int32 [rows, width]; index, out: int32 [rows, wanted]. */
TANDEM_API int32_t tandem_ascend_aux_take(const tandem_ascend_device *device, void *stream,
                                          const int32_t *a, const int32_t *index, int32_t *out,
                                          int64_t rows, int32_t width, int32_t wanted);

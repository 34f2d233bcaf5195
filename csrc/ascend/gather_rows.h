#pragma once

#include "../include/tandem_ascend.h"

/* gather_rows: y[i] = x[index[i]], zeros where the index is -1.
 *
 * x: any type [any, bytes] in bytes. index: int32 [rows]. y: [rows, bytes]. A task is `piece` bytes
 * of a row, a multiple of 32; UB holds five pieces. bytes > 0. */
TANDEM_API int32_t tandem_ascend_gather_rows(const tandem_ascend_device *device, void *stream,
                                             const void *x, const int32_t *index, void *y,
                                             int64_t rows, int64_t bytes, int64_t piece);

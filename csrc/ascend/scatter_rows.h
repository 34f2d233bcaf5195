#pragma once

#include "../include/tandem_ascend.h"

/* scatter_rows: x[index[i]] = values[i]. Rows of index -1 have no place and are not moved: what the
 * last row of x would get of them, nobody reads.
 *
 * x: any type [any, bytes] in bytes. index: int32 [rows], no place twice. values: [rows, bytes]. A
 * task is `piece` bytes of a row, a multiple of 32; UB holds four pieces. bytes > 0. */
TANDEM_API int32_t tandem_ascend_scatter_rows(const tandem_ascend_device *device, void *stream,
                                              void *x, const int32_t *index, const void *values,
                                              int64_t rows, int64_t bytes, int64_t piece);

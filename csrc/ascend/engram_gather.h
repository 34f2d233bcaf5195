#pragma once

#include "../include/tandem_ascend.h"

/* engram_gather: stored rows of the Engram table, which may lie in host memory, as mxfp8 rows.
 * index: int64 [rows, n], each at least first_row; table: uint8 [.., dim]; table_scale: uint8
 * [.., dim / 32]; codes: uint8 [rows, n, dim]; scales: uint8 [rows, groups], groups being n * dim
 * / 32 filled up to an even number. dim is a multiple of 32. */
TANDEM_API int32_t tandem_ascend_engram_gather(const tandem_ascend_device *device, void *stream,
                                               const int64_t *index, const uint8_t *table,
                                               const uint8_t *table_scale, uint8_t *codes,
                                               uint8_t *scales, int64_t first_row, int64_t rows,
                                               int32_t n, int32_t dim);

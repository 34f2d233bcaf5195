#pragma once

#include "../include/tandem_ascend.h"

/* topk_index: the k best of each tile of a row by (value descending, index ascending).
 *
 * values: [rows, width] of item bytes: 2 is bf16, 4 is f32. index: NULL, which is for all columns =
 * width of a row, or int32 [rows, columns], those columns of values that count, in ascending order,
 * -1 for none. A tile is so many columns, a multiple of 128. out: int32 [rows, tiles, k], of each
 * tile the columns of values in ascending order, -1 at the end. NaN and -inf are never chosen.
 *
 * UB holds two tiles of values, or one tile of values and columns where there is an index. k > 0.
 */
TANDEM_API int32_t tandem_ascend_topk_index(const tandem_ascend_device *device, void *stream,
                                            const void *values, const int32_t *index, int32_t *out,
                                            int64_t rows, int64_t width, int64_t columns,
                                            int32_t tile, int32_t k, int32_t item);

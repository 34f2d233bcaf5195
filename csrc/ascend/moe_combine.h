#pragma once

#include "../include/tandem_ascend.h"

/* moe_combine: the sum of a token's rows of y, rounded once.
 *
 * y: bf16 [any, width]. source: int32 [rows, k], the rows of y that belong to a token in the order
 * of their sum, -1 for one that is not there and adds nothing. shared: bf16 [rows, width], added
 * last, or NULL. out: bf16 [rows, width]. Rows are cut into pieces of so many bytes, a multiple of
 * 128, of which UB holds 2 * (k + 2). 1 <= k <= 64. */
TANDEM_API int32_t tandem_ascend_moe_combine(const tandem_ascend_device *device, void *stream,
                                             const uint16_t *y, const int32_t *source,
                                             const uint16_t *shared, uint16_t *out, int64_t rows,
                                             int32_t width, int32_t k, int64_t piece);

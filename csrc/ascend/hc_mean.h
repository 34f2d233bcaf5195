#pragma once

#include "../include/tandem_ascend.h"

/* hc_mean: x = mean of the m streams of trunk, added up in f32 in their order and rounded once.
 *
 * trunk: bf16 [rows, m, width]. x: bf16 [rows, width]. A task is `columns` columns of a row, a
 * multiple of 64; UB holds two of them, in and out. 0 < m <= 4095, width > 0. */
TANDEM_API int32_t tandem_ascend_hc_mean(const tandem_ascend_device *device, void *stream,
                                         const uint16_t *trunk, uint16_t *x, int64_t rows,
                                         int32_t m, int64_t width, int64_t columns);

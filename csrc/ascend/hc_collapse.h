#pragma once

#include "../include/tandem_ascend.h"

/* hc_collapse: x[t] = sum over i of pre[t, i] trunk[t, i], i ascending, in f32 with one rounding a
 * term, rounded once more at the end.
 *
 * trunk: bf16 [rows, m, width]. pre: f32 [rows, m]. x: bf16 [rows, width]. m is 1 to 4. Tasks as
 * those of hc_post. */
TANDEM_API int32_t tandem_ascend_hc_collapse(const tandem_ascend_device *device, void *stream,
                                             const uint16_t *trunk, const float *pre, uint16_t *x,
                                             int64_t rows, int32_t m, int32_t width,
                                             int32_t columns, int32_t tile, int32_t row_pieces);

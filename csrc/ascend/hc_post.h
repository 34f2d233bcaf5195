#pragma once

#include "../include/tandem_ascend.h"

/* hc_post: mixed[t, j] = post[t, j] y[t] + sum over i of comb[t, i, j] trunk[t, i], i ascending, in
 * f32 with one rounding a term, rounded once more at the end.
 *
 * y: bf16 [rows, width]. trunk, mixed: bf16 [rows, m, width]. post: f32 [rows, m]. comb: f32
 * [rows, m, m]. m is 1 to 4. A task is `columns` columns, a multiple of 64, of one of `row_pieces`
 * shares of the rows; UB holds `tile` rows of it. */
TANDEM_API int32_t tandem_ascend_hc_post(const tandem_ascend_device *device, void *stream,
                                         const uint16_t *y, const uint16_t *trunk,
                                         const float *post, const float *comb, uint16_t *mixed,
                                         int64_t rows, int32_t m, int32_t width, int32_t columns,
                                         int32_t tile, int32_t row_pieces);

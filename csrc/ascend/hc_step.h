#pragma once

#include "../include/tandem_ascend.h"

/* hc_step: hc_post of a sub-layer's output, then hc_enter of the next one by the pre of the one
 * that is left, in one pass over the trunk.
 *
 * y: bf16 [rows, width]. pre_prev, post_prev: f32 [rows, m], and comb_prev: f32 [rows, m, m], of
 * the sub-layer that is left. left: bf16 [rows, m, width], the trunk after it. All else as
 * hc_enter. */
TANDEM_API int32_t tandem_ascend_hc_step(
    const tandem_ascend_device *device, void *stream, const uint16_t *y, const uint16_t *trunk,
    const float *pre_prev, const float *post_prev, const float *comb_prev, const float *fn,
    const float *base, const float *scale, const float *norm_weight, float *partial, uint16_t *left,
    uint16_t *x, uint8_t *codes, uint8_t *scales, float *pre, float *post, float *comb,
    int64_t rows, int32_t m, int32_t width, float norm_eps, float hc_eps, int32_t iterations,
    int32_t columns, int32_t tile, int32_t row_pieces, int32_t output_pieces, int32_t mixed);

#pragma once

#include "../include/tandem_ascend.h"

/* hc_enter: what lies between a trunk and the input of a sub-layer. The coefficients are those of
 * hc_mix; x is hc_collapse of trunk by pre_prev, rounded, then rms_norm by norm_weight; codes and
 * scales are its mxfp8 copy.
 *
 * trunk: bf16 [rows, m, width]. pre_prev: f32 [rows, m]. fn, base, scale, partial, pre, post, comb,
 * and all sizes but width: as hc_mix. norm_weight: f32 [width]. x: bf16 [rows, width]. codes: e4m3
 * [rows, width]. scales: [rows, width / 32 filled up to an even number]. width is a multiple of
 * 32. */
TANDEM_API int32_t tandem_ascend_hc_enter(const tandem_ascend_device *device, void *stream,
                                          const uint16_t *trunk, const float *pre_prev,
                                          const float *fn, const float *base, const float *scale,
                                          const float *norm_weight, float *partial, uint16_t *x,
                                          uint8_t *codes, uint8_t *scales, float *pre, float *post,
                                          float *comb, int64_t rows, int32_t m, int32_t width,
                                          float norm_eps, float hc_eps, int32_t iterations,
                                          int32_t columns, int32_t tile, int32_t row_pieces,
                                          int32_t output_pieces, int32_t mixed);

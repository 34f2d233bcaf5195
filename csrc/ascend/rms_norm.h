#pragma once

#include "../include/tandem_ascend.h"

/* rms_norm: y = x * rsqrt(mean(x^2) + eps) * weight, rounded once; x, y bf16 [rows, width], weight
 * f32 [width] or NULL. codes e4m3 [rows, width] and scales [rows, width / 32 filled up to an even
 * number] of y, or NULL both; then width is a multiple of 32. */
TANDEM_API int32_t tandem_ascend_rms_norm(const tandem_ascend_device *device, void *stream,
                                          const uint16_t *x, const float *weight, uint16_t *y,
                                          uint8_t *codes, uint8_t *scales, int64_t rows,
                                          int32_t width, float eps);

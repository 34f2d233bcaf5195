#pragma once

#include "../include/tandem_ascend.h"

/* swiglu_quant: g = min(gate, limit), u = clip(up, -limit, limit), g / (1 + exp(-g)) * u [* weight
 * of the row] in f32, as mxfp8; gate, up bf16 [rows, width], weight f32 [rows] or NULL, codes and
 * scales as in quantize.h. width is a multiple of 32. */
TANDEM_API int32_t tandem_ascend_swiglu_quant(const tandem_ascend_device *device, void *stream,
                                              const uint16_t *gate, const uint16_t *up,
                                              const float *weight, uint8_t *codes, uint8_t *scales,
                                              int64_t rows, int32_t width, float limit);

#pragma once

#include "../include/tandem_ascend.h"

/* rope: the last `turned` elements of each head rotated, in pairs of neighbours, by the row's
 * angles, or back by them where `inverse`; the others copied. x, y bf16 [rows, heads, dim], cos_sin
 * f32 [rows, turned]: cosines, then sines. turned is even and at most dim. */
TANDEM_API int32_t tandem_ascend_rope(const tandem_ascend_device *device, void *stream,
                                      const uint16_t *x, const float *cos_sin, uint16_t *y,
                                      int64_t rows, int32_t heads, int32_t dim, int32_t turned,
                                      int32_t inverse);

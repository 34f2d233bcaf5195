#pragma once

#include "../include/tandem_ascend.h"

/* group_linear: y[t, g, n] = sum over k of x[t, g, k] w[g, n, k], f32 sums, bf16 [T, G, N].
 *
 * x: e4m3 [T, G, K]; x_scale: [T, G, P, 2], the scale bytes of 32 elements in P = ceil(K / 64)
 * pairs of which what K does not need is 127; w: e4m3 [G, N, K]; w_scale: [G, N, P, 2] likewise.
 * K a multiple of 32; G * K at most 65535. */
TANDEM_API int32_t tandem_ascend_group_linear(const tandem_ascend_device *device, void *stream,
                                              const uint8_t *x, const uint8_t *x_scale,
                                              const uint8_t *w, const uint8_t *w_scale, uint16_t *y,
                                              int64_t T, int64_t G, int64_t N, int64_t K);

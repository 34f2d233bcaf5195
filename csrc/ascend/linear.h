#pragma once

#include "../include/tandem_ascend.h"

/* linear: y[t, n] = sum over k of x[t, k] w[n, k], f32 sums, [T, N] f32 where `wide`, else bf16.
 *
 * tandem_ascend_linear_bf16 and _f32: x [T, K] and w [N, K] of that type. tandem_ascend_linear_mx8:
 * as group_linear with one group. K at most 65535. */
TANDEM_API int32_t tandem_ascend_linear_bf16(const tandem_ascend_device *device, void *stream,
                                             const uint16_t *x, const uint16_t *w, void *y,
                                             int64_t T, int64_t N, int64_t K, int32_t wide);
TANDEM_API int32_t tandem_ascend_linear_f32(const tandem_ascend_device *device, void *stream,
                                            const float *x, const float *w, void *y, int64_t T,
                                            int64_t N, int64_t K, int32_t wide);
TANDEM_API int32_t tandem_ascend_linear_mx8(const tandem_ascend_device *device, void *stream,
                                            const uint8_t *x, const uint8_t *x_scale,
                                            const uint8_t *w, const uint8_t *w_scale, void *y,
                                            int64_t T, int64_t N, int64_t K, int32_t wide);

#pragma once

#include "../include/tandem_ascend.h"

/* grouped_linear: y[t, n] = sum over k of x[t, k] w[e, n, k], e the expert of row t, f32 sums, [T,
 * N] f32 where `wide`, else bf16.
 *
 * ends: int32 [E], inclusive prefix sums of rows by expert, rows past the last are zero; NULL: all
 * rows are of the one expert. x: e4m3 [T, K]; x_scale: [T, P, 2], the scale bytes of 32 elements in
 * P = ceil(K / 64) pairs of which what K does not need is 127. mx8: w e4m3 [E, N, K], w_scale
 * [E, N, P, 2] likewise. mx4: w [E, 2 P, N, 16] packed e2m1 group by group, zeros past K, w_scale
 * the scales plus 6. K a multiple of 32, at most 65535. */
TANDEM_API int32_t tandem_ascend_grouped_linear_mx8(const tandem_ascend_device *device,
                                                    void *stream, const uint8_t *x,
                                                    const uint8_t *x_scale, const uint8_t *w,
                                                    const uint8_t *w_scale, const int32_t *ends,
                                                    void *y, int64_t T, int64_t E, int64_t N,
                                                    int64_t K, int32_t wide);
TANDEM_API int32_t tandem_ascend_grouped_linear_mx4(const tandem_ascend_device *device,
                                                    void *stream, const uint8_t *x,
                                                    const uint8_t *x_scale, const uint8_t *w,
                                                    const uint8_t *w_scale, const int32_t *ends,
                                                    void *y, int64_t T, int64_t E, int64_t N,
                                                    int64_t K, int32_t wide);

#pragma once

#include "../include/tandem_ascend.h"

/* hc_mix: mixing coefficients of a trunk, with flat the m * width elements of a row:
 *
 *   mixes = (flat @ fn^T) / sqrt(mean(flat^2) + norm_eps)
 *   pre   = sigmoid(mixes[:m] scale[0] + base) + hc_eps
 *   post  = 2 sigmoid(mixes[m:2m] scale[1] + base)
 *   comb  = softmax over rows of mixes[2m:] scale[2] + base, plus hc_eps, divided by the sum of its
 *           columns plus hc_eps, and iterations - 1 times by that of rows and columns in turn
 *
 * Dot products and squares are summed in f32: in a chunk of `columns` columns of all streams, in 64
 * lanes and then as a tree; and over the chunks in their order.
 *
 * trunk: bf16 [rows, m, width]. fn: f32 [m * m + 2 m, m * width]. base: f32 [m * m + 2 m]. scale:
 * f32 [3]. partial: f32 [chunks, rows, 32], for the sums of chunks. pre, post: f32 [rows, m]. comb:
 * f32 [rows, m, m]. m is 1 to 4. Tasks of the pass are the chunks by `row_pieces` shares of the
 * rows by `output_pieces` shares of the outputs, and UB holds `tile` rows; those of the second
 * launch are `mixed` rows, a multiple of 4. */
TANDEM_API int32_t tandem_ascend_hc_mix(const tandem_ascend_device *device, void *stream,
                                        const uint16_t *trunk, const float *fn, const float *base,
                                        const float *scale, float *partial, float *pre, float *post,
                                        float *comb, int64_t rows, int32_t m, int32_t width,
                                        float norm_eps, float hc_eps, int32_t iterations,
                                        int32_t columns, int32_t tile, int32_t row_pieces,
                                        int32_t output_pieces, int32_t mixed);

#pragma once

#include "../include/tandem_ascend.h"

/* attn_block: rope of the queries, sparse_attn, the rotation taken back, quantize to mxfp8.
 *
 * q: bf16 [T, heads, dim]; cos_sin: f32 [T, turned], cosines, then sines. Caches, slots, sink and
 * partial are as for sparse_attn. codes: e4m3 [T, heads * dim]; scales: ue8m0 [T, heads * dim / 32,
 * filled up with ones to an even number]. dim: a multiple of 32 and whole groups of the formats of
 * the caches; turned is even, from 2 to dim. */
TANDEM_API int32_t tandem_ascend_attn_block(
    const tandem_ascend_device *device, void *stream, const uint16_t *q, const float *cos_sin,
    const uint8_t *window, const int32_t *window_slots, const uint8_t *main,
    const int32_t *main_slots, const float *sink, uint8_t *codes, uint8_t *scales, float *partial,
    int64_t T, int32_t heads, int32_t dim, int32_t turned, int32_t window_count, int32_t main_count,
    int32_t window_format, int32_t main_format, float scale);

#pragma once

#include "../include/tandem_ascend.h"

/* index_query: x bf16 [rows, heads * dim] with the last `turned` elements of each head rotated, in
 * pairs of neighbours, by the row's angles, then quantised to mxfp4: codes [rows, heads * dim / 2],
 * scales [rows, heads * dim / 32]. cos_sin f32 [rows, turned]: cosines, then sines. turned is even
 * and at most dim, dim is even, heads * dim a multiple of 32. */
TANDEM_API int32_t tandem_ascend_index_query(const tandem_ascend_device *device, void *stream,
                                             const uint16_t *x, const float *cos_sin,
                                             uint8_t *codes, uint8_t *scales, int64_t rows,
                                             int32_t heads, int32_t dim, int32_t turned);

#pragma once

#include "../include/tandem_ascend.h"

/* compress_update: the softmax of the last `ratio` rows of a request over their gates, by column,
 * where they are a whole group; and the state of its last rows.
 *
 * value, gate: f32 [rows, width]. state: f32 [slots, ring, 2, width], gate and value by position
 * modulo ring. positions, slot, chunk_start, chunk_end: int32 [rows], as the rows of a step have
 * them. latent: bf16 [rows, width], written where (position + 1) % ratio is 0. Rows are cut into
 * pieces of so many bytes of f32, a multiple of 256, of which UB holds 4 * ratio + 5. ring > 0,
 * ratio > 1. */
TANDEM_API int32_t tandem_ascend_compress_update(const tandem_ascend_device *device, void *stream,
                                                 const float *value, const float *gate,
                                                 float *state, const int32_t *positions,
                                                 const int32_t *slot, const int32_t *chunk_start,
                                                 const int32_t *chunk_end, uint16_t *latent,
                                                 int64_t rows, int32_t width, int32_t ring,
                                                 int32_t ratio, int64_t piece);

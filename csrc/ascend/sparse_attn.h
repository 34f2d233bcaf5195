#pragma once

#include "../include/tandem_ascend.h"

/* sparse_attn: attention of each row over the entries that its slots name, -1 naming none.
 *
 * q, out: bf16 [T, heads, dim]. window, main: uint8 [.., entry], an entry being its codes and then
 * its scales, in format 0 mxfp8, 1 mxfp4 or 2 nvfp4; main may be NULL with main_count 0. Slots:
 * int32 [T, count] each, window first. sink: f32 [heads]. dim: whole groups of both formats and a
 * multiple of 16. partial: NULL, or f32 [T, C, heads, dim + 2] with which few rows are dealt out to
 * more cores; its bytes after the call are anything. C: chunks of 64 slots of window and of main,
 * at least 2. A row's result is the same with it and without. */
TANDEM_API int32_t tandem_ascend_sparse_attn(
    const tandem_ascend_device *device, void *stream, const uint16_t *q, const uint8_t *window,
    const int32_t *window_slots, const uint8_t *main, const int32_t *main_slots, const float *sink,
    uint16_t *out, float *partial, int64_t T, int32_t heads, int32_t dim, int32_t window_count,
    int32_t main_count, int32_t window_format, int32_t main_format, float scale);

#pragma once

#include "../include/tandem_ascend.h"

/* moe_dispatch: rows sorted by (expert, token, k), of the experts first to first + count - 1.
 *
 * codes: [rows, width] bytes, scale: [rows, groups] bytes. experts, weights: int32 and f32
 * [rows, k]. row_slot: int32 [rows], negative for padding.
 *
 * A pair (token, k) has its place among rows * k: to_codes, to_scale and to_weights get its row and
 * its weight there. source: int32 [rows, k], the place of each pair, -1 for one that is not sent.
 * ends: int32 [count], one past the last place of each expert. Places past the last end are not
 * written. width and groups > 0, 1 <= k <= 64, 0 <= count <= 4096. */
TANDEM_API int32_t tandem_ascend_moe_dispatch(
    const tandem_ascend_device *device, void *stream, const uint8_t *codes, const uint8_t *scale,
    const int32_t *experts, const float *weights, const int32_t *row_slot, uint8_t *to_codes,
    uint8_t *to_scale, float *to_weights, int32_t *ends, int32_t *source, int64_t rows,
    int32_t width, int32_t groups, int32_t k, int32_t first, int32_t count);

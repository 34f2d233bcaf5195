#pragma once

#include "../include/tandem_ascend.h"

/* embed: y[t] = table[ids[t]], or override[override_index[t]] rounded to bf16 where that index is
 * 0 or more.
 *
 * ids: int32 [rows]. table: bf16 [any, width]. override, override_index: any of the two NULL, or
 * [any, width] of bf16, or of f32 where override_f32 is 1, and int32 [rows]. y: bf16 [rows, width].
 * A task is `columns` columns of a row, a multiple of 16; UB holds ten times their bytes. */
TANDEM_API int32_t tandem_ascend_embed(const tandem_ascend_device *device, void *stream,
                                       const int32_t *ids, const uint16_t *table,
                                       const void *override_rows, const int32_t *override_index,
                                       uint16_t *y, int64_t rows, int64_t width, int64_t columns,
                                       int32_t override_f32);

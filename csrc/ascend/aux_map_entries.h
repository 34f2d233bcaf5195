#pragma once

#include "../include/tandem_ascend.h"

/* aux.map_entries: slots of entries of each row's request; -1 where an entry, its block or the
 * request is none.
 * entries, out: int32 [rows, width]; slot: int32 [rows]; table: int32 [.., columns], by request
 * slot. columns and block_entries > 0. */
TANDEM_API int32_t tandem_ascend_aux_map_entries(const tandem_ascend_device *device, void *stream,
                                                 const int32_t *entries, const int32_t *slot,
                                                 const int32_t *table, int32_t *out, int64_t rows,
                                                 int32_t width, int32_t columns,
                                                 int32_t block_entries);

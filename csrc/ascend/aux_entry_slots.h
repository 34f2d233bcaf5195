#pragma once

#include "../include/tandem_ascend.h"

/* aux.entry_slots: the slot of the entry that each row completes, -1 where it completes none.
 * positions, slot, out: int32 [rows]; table: int32 [.., columns], by request slot.
 * columns, block_entries and ratio > 0; wrap is 0 or 1. */
TANDEM_API int32_t tandem_ascend_aux_entry_slots(const tandem_ascend_device *device, void *stream,
                                                 const int32_t *positions, const int32_t *slot,
                                                 const int32_t *table, int32_t *out, int64_t rows,
                                                 int32_t columns, int32_t block_entries,
                                                 int32_t ratio, int32_t wrap);

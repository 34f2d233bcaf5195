#pragma once

#include "../include/tandem_ascend.h"

/* aux.window_slots: slots of positions p - window + 1 .. p of rows at positions p; -1 for those
 * below first, for blocks that are not held and for rows without a request.
 * positions, slot: int32 [rows]; table: int32 [.., columns] and first: int32 [..], by request slot;
 * out: int32 [rows, window]. columns, block_entries and window > 0. */
TANDEM_API int32_t tandem_ascend_aux_window_slots(const tandem_ascend_device *device, void *stream,
                                                  const int32_t *positions, const int32_t *slot,
                                                  const int32_t *table, const int32_t *first,
                                                  int32_t *out, int64_t rows, int32_t columns,
                                                  int32_t block_entries, int32_t window);

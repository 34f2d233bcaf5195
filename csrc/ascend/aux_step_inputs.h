#pragma once

#include "../include/tandem_ascend.h"

/* aux.step_inputs: token, position and request slot of each row of a step, from the host's arrays
 * or, where from_device is not 0, from the step before; a row that has no token or is at its limit
 * becomes padding.
 * host_ids, host_positions, from_device, host_slot, ids, positions, slot: int32 [rows];
 * last_token, length, limit: int32 [..] and drafts: int32 [.., block] or NULL (block 0), by request
 * slot. */
TANDEM_API int32_t tandem_ascend_aux_step_inputs(
    const tandem_ascend_device *device, void *stream, const int32_t *host_ids,
    const int32_t *host_positions, const int32_t *from_device, const int32_t *host_slot,
    const int32_t *last_token, const int32_t *length, const int32_t *limit, const int32_t *drafts,
    int32_t *ids, int32_t *positions, int32_t *slot, int64_t rows, int32_t block);

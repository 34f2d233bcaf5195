#pragma once

#include "../include/tandem_ascend.h"

/* aux.draft_rows: the rows of a block of drafts of each request, and the keys that each row reads;
 * padding where slot or anchor is negative.
 * anchor, position, slot: int32 [requests]; ids, positions, row_slot, context, own: int32
 * [requests, block]; keys: int32 [requests, block, block]. block > 0; noise: id of the rows that
 * follow the anchor. */
TANDEM_API int32_t tandem_ascend_aux_draft_rows(const tandem_ascend_device *device, void *stream,
                                                const int32_t *anchor, const int32_t *position,
                                                const int32_t *slot, int32_t *ids,
                                                int32_t *positions, int32_t *row_slot,
                                                int32_t *context, int32_t *own, int32_t *keys,
                                                int64_t requests, int32_t block, int32_t noise);

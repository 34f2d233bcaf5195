#pragma once

#include "../include/tandem_ascend.h"

/* engram_context: the last n compressed token ids of each row, and the history of the last `ring`
 * rows of each request.
 * ids, positions, slot, chunk_start, chunk_end, roles: int32 [rows], of a step; vocabulary: int32
 * [..], by id; history: int32 [slots, ring], by request slot, the last one scratch; context: int32
 * [rows, n]. ring and slots > 0; pad: the id of what is not there.
 * Two launches: a row late in a chunk may write where an early one reads what was before the step.
 */
TANDEM_API int32_t tandem_ascend_engram_context(const tandem_ascend_device *device, void *stream,
                                                const int32_t *ids, const int32_t *positions,
                                                const int32_t *slot, const int32_t *chunk_start,
                                                const int32_t *chunk_end, const int32_t *roles,
                                                const int32_t *vocabulary, int32_t *history,
                                                int32_t *context, int64_t rows, int32_t slots,
                                                int32_t ring, int32_t pad, int32_t n);

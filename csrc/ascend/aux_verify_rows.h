#pragma once

#include "../include/tandem_ascend.h"

/* aux.verify_rows: one row for every slot, the others for the drafts that are likeliest to be
 * taken. slots, most, counts: int32 [requests]; rates: float [.., block], drafts: int32 [.., block]
 * and length, limit: int32 [..], by request slot; slot, offset, chunk_start, chunk_end: int32
 * [rows]. block > 0, rows >= requests; the rates of all drafts fit UB. Two launches: counts first,
 * then the rows. */
TANDEM_API int32_t tandem_ascend_aux_verify_rows(
    const tandem_ascend_device *device, void *stream, const int32_t *slots, const float *rates,
    const int32_t *drafts, const int32_t *length, const int32_t *limit, const int32_t *most,
    int32_t *slot, int32_t *offset, int32_t *chunk_start, int32_t *chunk_end, int32_t *counts,
    int64_t requests, int32_t block, int64_t rows);

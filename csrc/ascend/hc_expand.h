#pragma once

#include "../include/tandem_ascend.h"

/* hc_expand: trunk[t, i] = x[t] for all m streams.
 *
 * x: bf16 [rows, bytes] in bytes. trunk: [rows, m, bytes]. A task is `piece` bytes of a row, a
 * multiple of 32; UB holds four pieces. m > 0, bytes > 0. */
TANDEM_API int32_t tandem_ascend_hc_expand(const tandem_ascend_device *device, void *stream,
                                           const uint16_t *x, uint16_t *trunk, int64_t rows,
                                           int64_t m, int64_t bytes, int64_t piece);

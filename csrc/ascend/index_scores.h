#pragma once

#include "../include/tandem_ascend.h"

/* index_scores: of each row and entry, the sum over heads, ascending, of weight times the product
 * of query and key, where that is positive.
 *
 * codes, scales: mxfp4 queries [T, heads, dim]. weights: bf16 [T, heads]. cache: uint8 [.., entry],
 * an entry being dim / 2 bytes of codes, then dim / 32 scales. table: int32 [.., columns], blocks
 * of so many entries; row_slot: int32 [T], -1 of no request. lens: int32 [T], visible entries of
 * each row; what lies beyond is -inf and not read. out: bf16 [T, width]. dim is a multiple of 32.
 */
TANDEM_API int32_t tandem_ascend_index_scores(const tandem_ascend_device *device, void *stream,
                                              const uint8_t *codes, const uint8_t *scales,
                                              const uint16_t *weights, const uint8_t *cache,
                                              const int32_t *table, const int32_t *row_slot,
                                              const int32_t *lens, uint16_t *out, int64_t T,
                                              int64_t width, int32_t heads, int32_t dim,
                                              int32_t columns, int32_t block_entries);

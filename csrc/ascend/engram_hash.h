#pragma once

#include "../include/tandem_ascend.h"

/* engram_hash: rows of the Engram table of contexts, by length of n-gram and head.
 * context: int32 [rows, n]; multipliers: int64 [n]; primes, offsets: int64 [n - 1, heads];
 * hashed: int64 [rows, n - 1, heads]. */
TANDEM_API int32_t tandem_ascend_engram_hash(const tandem_ascend_device *device, void *stream,
                                             const int32_t *context, const int64_t *multipliers,
                                             const int64_t *primes, const int64_t *offsets,
                                             int64_t *hashed, int64_t rows, int32_t n,
                                             int32_t heads);

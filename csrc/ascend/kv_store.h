#pragma once

#include "../include/tandem_ascend.h"

/* kv_store: encode rows into entries of a cache, each its codes and then its scales; rows whose
 * slot is negative write nothing.
 * x: bf16 [rows, dim]; cache: uint8 [.., entry]; slots: int32 [rows], distinct where not negative.
 * format: 0 mxfp8, 1 mxfp4, 2 nvfp4; dim is a whole number of its groups. */
TANDEM_API int32_t tandem_ascend_kv_store(const tandem_ascend_device *device, void *stream,
                                          const uint16_t *x, uint8_t *cache, const int32_t *slots,
                                          int64_t rows, int32_t dim, int32_t format);

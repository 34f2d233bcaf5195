#pragma once

#include "../include/tandem_ascend.h"

/* kv_load: entries of a cache as rows, zeros where the slot is negative.
 * cache: uint8 [.., entry], an entry being its codes and then its scales; slots: int32 [rows]; x:
 * bf16 [rows, dim]. format: 0 mxfp8, 1 mxfp4, 2 nvfp4; dim is a whole number of its groups. */
TANDEM_API int32_t tandem_ascend_kv_load(const tandem_ascend_device *device, void *stream,
                                         const uint8_t *cache, const int32_t *slots, uint16_t *x,
                                         int64_t rows, int32_t dim, int32_t format);

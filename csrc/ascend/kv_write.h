#pragma once

#include "../include/tandem_ascend.h"

/* kv_write: rms_norm of key rows; then, of rows whose slot is not negative, rope of one head and
 * kv_store.
 * x, normed: bf16 [rows, dim]; weight: float [dim]; cos_sin: float [rows, turned], cosines, then
 * sines; cache: uint8 [.., entry]; slots: int32 [rows], distinct where not negative. turned is
 * even, from 2 to dim. format: 0 mxfp8, 1 mxfp4, 2 nvfp4; dim is a whole number of its groups. */
TANDEM_API int32_t tandem_ascend_kv_write(const tandem_ascend_device *device, void *stream,
                                          const uint16_t *x, const float *weight,
                                          const float *cos_sin, uint16_t *normed, uint8_t *cache,
                                          const int32_t *slots, int64_t rows, int32_t dim,
                                          int32_t turned, int32_t format, float eps);

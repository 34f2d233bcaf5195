#pragma once

#include "../include/tandem_ascend.h"

/* quantize: x bf16 [rows, width] to codes and scales. format 0: mxfp8, codes e4m3 [rows, width],
 * scales ue8m0 [rows, width / 32 filled up to an even number]. 1: mxfp4, codes e2m1 [rows, width /
 * 2], two a byte, scales ue8m0 [rows, width / 32]. 2: nvfp4, codes as of mxfp4, scales e4m3 [rows,
 * width / 16]. width is a multiple of the group. */
TANDEM_API int32_t tandem_ascend_quantize(const tandem_ascend_device *device, void *stream,
                                          const uint16_t *x, uint8_t *codes, uint8_t *scales,
                                          int64_t rows, int32_t width, int32_t format);

#pragma once

#include "../include/tandem_ascend.h"

/* dequantize: x bf16 [rows, width] = code * scale, rounded once; codes, scales and format as in
 * quantize.h. */
TANDEM_API int32_t tandem_ascend_dequantize(const tandem_ascend_device *device, void *stream,
                                            const uint8_t *codes, const uint8_t *scales,
                                            uint16_t *x, int64_t rows, int32_t width,
                                            int32_t format);

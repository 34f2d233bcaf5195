#pragma once

#include "../include/tandem_ascend.h"

/* aux.visible: out = (p + 1) / ratio of positions p, 0 where slot is negative; int32 [rows] all.
 * ratio > 0. */
TANDEM_API int32_t tandem_ascend_aux_visible(const tandem_ascend_device *device, void *stream,
                                             const int32_t *positions, const int32_t *slot,
                                             int32_t *out, int64_t rows, int32_t ratio);

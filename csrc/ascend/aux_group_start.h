#pragma once

#include "../include/tandem_ascend.h"

/* aux.group_start: out = p - p % ratio of positions p; int32 [rows] both. ratio > 0. */
TANDEM_API int32_t tandem_ascend_aux_group_start(const tandem_ascend_device *device, void *stream,
                                                 const int32_t *positions, int32_t *out,
                                                 int64_t rows, int32_t ratio);

#pragma once

#include "../include/tandem_ascend.h"

/* engram_gate: updated = h + g v for each stream h of a row, rounded once; rows with a role other
 * than 0 pass unchanged. With the stream's key k and weights w,
 * s = sum(h w k) / sqrt(mean h^2 + eps) / sqrt(mean k^2 + eps) / sqrt(width) and
 * g = sigmoid(copysign(sqrt(max(|s|, 1e-6)), s)).
 *
 * trunk, updated: bf16 [rows, m, width]. kv: bf16 [rows, m + 1, width], the keys and the value v.
 * qk: f32 [m, width]. roles: int32 [rows]. m > 0, width > 0; UB holds 20 bytes a column. */
TANDEM_API int32_t tandem_ascend_engram_gate(const tandem_ascend_device *device, void *stream,
                                             const uint16_t *trunk, const uint16_t *kv,
                                             const float *qk, const int32_t *roles,
                                             uint16_t *updated, int64_t rows, int32_t m,
                                             int32_t width, float eps);

#pragma once

#include "../include/tandem_ascend.h"

/* aux.commit: last_token[slot] = token and length[slot] = position + 1; rows whose slot is negative
 * write nothing.
 * tokens, slots, positions: int32 [rows]; last_token, length: int32 [..], by request slot. */
TANDEM_API int32_t tandem_ascend_aux_commit(const tandem_ascend_device *device, void *stream,
                                            const int32_t *tokens, const int32_t *slots,
                                            const int32_t *positions, int32_t *last_token,
                                            int32_t *length, int64_t rows);

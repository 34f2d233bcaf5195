#pragma once

#include "../include/tandem_ascend.h"

/* aux.draft_commit: keep the draft at place `column` of each request's block, its rate and the
 * weights that it was drawn by; a request whose slot is negative leaves nothing.
 * slots, token: int32 [requests]; weight: int32 [requests, width]; confidence: float [requests];
 * drafts: int32 [.., block] and rates: float [.., block], by request slot; proposal: int32
 * [slots * block, width]. 0 <= column < block. */
TANDEM_API int32_t tandem_ascend_aux_draft_commit(const tandem_ascend_device *device, void *stream,
                                                  const int32_t *slots, const int32_t *token,
                                                  const int32_t *weight, const float *confidence,
                                                  int32_t *drafts, int32_t *proposal, float *rates,
                                                  int64_t requests, int64_t width, int32_t block,
                                                  int32_t column);

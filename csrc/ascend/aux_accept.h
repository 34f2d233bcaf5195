#pragma once

#include "../include/tandem_ascend.h"

/* aux.accept: how many tokens each request emits, its last one and its new length; a segment of
 * `count` rows from `first` on is a request's, and of these all but the last judge a draft.
 * token, accepted: int32 [..], by row; first, count, base, slots, emitted: int32 [requests];
 * last_token, length: int32 [..], by request slot, not written where slots is negative or count 0.
 */
TANDEM_API int32_t tandem_ascend_aux_accept(const tandem_ascend_device *device, void *stream,
                                            const int32_t *token, const int32_t *accepted,
                                            const int32_t *first, const int32_t *count,
                                            const int32_t *base, const int32_t *slots,
                                            int32_t *last_token, int32_t *length, int32_t *emitted,
                                            int64_t requests);

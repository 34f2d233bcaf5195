#pragma once

#include "../include/tandem_ascend.h"

/* pool_expand: entries of blocks: out[t, i * block + j] = blocks[t, i] * block + j, or -1 where the
 * block is -1 or the entry is not below lens[t].
 *
 * blocks: int32 [rows, count]. lens: int32 [rows]. out: int32 [rows, count * block]. A task is
 * `part` blocks of a row, a multiple of 8; UB holds two, in and out. count > 0, block > 0. */
TANDEM_API int32_t tandem_ascend_pool_expand(const tandem_ascend_device *device, void *stream,
                                             const int32_t *blocks, const int32_t *lens,
                                             int32_t *out, int64_t rows, int64_t count,
                                             int32_t block, int64_t part);

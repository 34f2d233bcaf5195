#pragma once

#include "../include/tandem_ascend.h"

/* block_max: the largest score of each block of `block` entries, at most the largest finite bf16;
 * +inf for the block of the last of lens[t] entries, -inf for those after it. NaN counts as -inf.
 *
 * scores: bf16 [rows, width]. lens: int32 [rows]. out: bf16 [rows, count], count the blocks of a
 * row. A task is `part` blocks of a row, a multiple of 128 up to 16384. block is a power of two,
 * width > 0. */
TANDEM_API int32_t tandem_ascend_block_max(const tandem_ascend_device *device, void *stream,
                                           const uint16_t *scores, const int32_t *lens,
                                           uint16_t *out, int64_t rows, int64_t width,
                                           int32_t block, int64_t part);

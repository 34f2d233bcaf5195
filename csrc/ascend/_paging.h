// Block tables: entry numbers of a request to slots of a cache.
#pragma once

#include "kernel.h"

// The slot of an entry >= 0, -1 where its block is not held. `blocks` is the request's row of a
// table with so many columns, in which a block stands by its number or, where `wrap`, by its number
// modulo the columns.
__simt_callee__ inline int32_t look_up(int32_t entry, Gm<int32_t> blocks, int32_t columns,
                                       int32_t block_entries, bool wrap) {
  const int32_t block = entry / block_entries;
  const int32_t held = blocks[wrap ? block % columns : min(block, columns - 1)];
  return held < 0 ? -1 : held * block_entries + entry % block_entries;
}

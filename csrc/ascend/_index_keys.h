// The keys of a row: entries of its request one after another, or a list of entries.
#pragma once

#include "_index_plan.h"

namespace tandem {

// Lines from slot `slot` of the cache on; -1: lines of zeros.
struct Run {
  int32_t slot;
  uint32_t count;
};

// A request's row of a block table; of no request, nothing is held.
struct BlockRow {
  Gm<int32_t> blocks;
  bool some;
  uint32_t columns, block_entries;

  __aicore__ inline int32_t slot(uint32_t entry) const {
    if (!some) return -1;
    const uint32_t block = entry / block_entries;
    const int32_t held = blocks[block < columns ? block : columns - 1];
    return held < 0 ? -1 : held * int32_t(block_entries) + int32_t(entry % block_entries);
  }
};

__aicore__ inline BlockRow block_row(const IndexShape &s, Gm<int32_t> table, int32_t request) {
  BlockRow row{table, request >= 0, s.columns, s.block_entries};
  if (row.some) row.blocks = table + int64_t(request) * s.columns;
  return row;
}

// Entries from `first` on, of which the first `seen` are read.
struct PagedKeys {
  static constexpr bool kListed = false;
  BlockRow row;
  uint32_t first, seen;

  // From the key with number i on, at most so many.
  __aicore__ inline Run run(uint32_t i, uint32_t most) const {
    if (i >= seen) return {-1, most};
    const uint32_t entry = first + i, of_block = row.block_entries - entry % row.block_entries;
    const uint32_t left = of_block < seen - i ? of_block : seen - i;
    return {row.slot(entry), left < most ? left : most};
  }
};

// Entries of a list, -1 naming none.
struct ListedKeys {
  static constexpr bool kListed = true;
  BlockRow row;
  Gm<int32_t> entries;

  __aicore__ inline int32_t slot(uint32_t i) const {
    const int32_t entry = entries[i];
    return entry < 0 ? -1 : row.slot(uint32_t(entry));
  }
  __aicore__ inline Run run(uint32_t i, uint32_t most) const {
    const int32_t start = slot(i);
    uint32_t many = 1;
    while (many < most && slot(i + many) == (start < 0 ? -1 : start + int32_t(many))) ++many;
    return {start, many};
  }
};

}  // namespace tandem

// Where the keys of a request's entries lie, and how the scores of a call are cut into tasks.
#pragma once

#include <cstdint>

#include "index_keys.h"
#include "tandem.h"

namespace tandem::TANDEM_ISA::indexer {

constexpr int64_t kSpanKeys = 4 * kBlockKeys;  // of a task

// The index cache: entries of codes and then scales, in blocks that a table of [requests, columns]
// names.
struct Paging {
  const uint8_t *cache;
  const int32_t *table;
  int64_t requests, columns, block_entries, cache_entries, groups;

  // First cache entry of a block of entries; negative where none is held. As the reference, blocks
  // past the table are its last.
  TANDEM_INLINE int64_t first_entry(int64_t request, int64_t block) const {
    const int64_t column = block < columns ? block : columns - 1;
    return static_cast<int64_t>(table[request * columns + column]) * block_entries;
  }

  TANDEM_INLINE const uint8_t *entry(int64_t number) const {
    return cache + number * 17 * groups;  // 16 bytes of codes and one of scale for 32 channels
  }

  // Whether the blocks that hold a request's first `count` entries lie in the cache.
  bool holds(int64_t request, int64_t count) const {
    const int64_t blocks = (count + block_entries - 1) / block_entries;
    for (int64_t b = 0; b < (blocks < columns ? blocks : columns); ++b)
      if (first_entry(request, b) + block_entries > cache_entries) return false;
    return true;
  }

  bool possible() const {
    return requests > 0 && columns > 0 && block_entries > 0 && block_entries < (1 << 30) &&
           cache_entries >= 0 && groups > 0 && groups <= kMostGroups;
  }
};

// What is read for an entry that a request does not hold: zeros of scale one.
struct NoKey {
  uint8_t bytes[17 * kMostGroups];

  explicit NoKey(int64_t groups) {
    for (int64_t i = 0; i < 17 * groups; ++i) bytes[i] = i < 16 * groups ? 0 : 127;
  }
};

TANDEM_INLINE void hide(uint16_t *scores, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j) scores[j] = 0xff80;  // -inf
}

}  // namespace tandem::TANDEM_ISA::indexer

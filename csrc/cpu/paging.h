// Block tables: entry numbers of a request to slots of a cache.
#pragma once

#include <cstdint>

#include "vec.h"

namespace tandem::TANDEM_ISA {

// Entries in blocks of one size. Dividing by a power of two, which sizes mostly are, is shifting.
class Blocks {
 public:
  TANDEM_INLINE explicit Blocks(int64_t size) : size_(size), shift_(0) {
    while (shift_ < 31 && (int64_t{1} << shift_) < size) ++shift_;
    if ((int64_t{1} << shift_) != size) shift_ = -1;
  }

  // Rounds down.
  TANDEM_INLINE int64_t of(int64_t entry) const {
    if (shift_ >= 0) return entry >> shift_;
    const int64_t block = entry / size_;
    return block * size_ > entry ? block - 1 : block;
  }

  // The slot of an entry in the block that `held` names, -1 where it names none.
  TANDEM_INLINE int32_t slot(int32_t held, int64_t entry) const {
    return held < 0 ? -1 : static_cast<int32_t>(held * size_ + (entry - of(entry) * size_));
  }

 private:
  int64_t size_, shift_;
};

// The remainder that is not negative.
TANDEM_INLINE int64_t modulo(int64_t a, int64_t b) {
  const int64_t rest = a % b;
  return rest < 0 ? rest + b : rest;
}

// A block as a column of a table: the last one where there are not so many.
TANDEM_INLINE int64_t clamped(int64_t block, int64_t columns) {
  return block < 0 ? 0 : block < columns ? block : columns - 1;
}

// Whether every request has a row in a table of so many rows; negative ones are padding.
TANDEM_INLINE bool requests_inside(const int32_t *slot, int64_t count, int64_t rows) {
  for (int64_t i = 0; i < count; ++i)
    if (slot[i] >= rows) return false;
  return true;
}

}  // namespace tandem::TANDEM_ISA

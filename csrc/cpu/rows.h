// Rows of bytes that are copied as they are.
#pragma once

#include <cstdint>
#include <cstring>

#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA {

constexpr int64_t kPiece = 32768;  // bytes of a row that one thread copies at once

// copy(row, from, bytes) for the pieces of T rows of so many bytes: few long rows keep all threads
// busy, too.
template <typename Copy>
inline void each_piece(int64_t T, int64_t bytes, const Copy &copy) {
  const int64_t pieces = (bytes + kPiece - 1) / kPiece;
  parallel_for(T * pieces, 2 * (bytes < kPiece ? bytes : kPiece), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = i % pieces * kPiece;
      copy(i / pieces, from, bytes - from < kPiece ? bytes - from : kPiece);
    }
  });
}

// The last entry of an index that is negative, -1 for none: of rows that go to scratch it is the
// one that stays, and writing it alone keeps threads out of each other's way.
TANDEM_INLINE int64_t last_negative(const int32_t *index, int64_t count) {
  while (count > 0 && index[count - 1] >= 0) --count;
  return count - 1;
}

}  // namespace tandem::TANDEM_ISA

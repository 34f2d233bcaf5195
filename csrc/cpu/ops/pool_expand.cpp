// pool_expand: blocks of the candidate pool to their entries.
//
//   blocks   i32 [T, N]           negative: none
//   lens     i32 [T]              entries that a row sees
//   entries  i32 [T, N * block]   out; -1: none, or not seen
//   block    entries of a block, at least 1
#include "parallel.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::pool_expand {

int32_t run(const int32_t *blocks, const int32_t *lens, int32_t *entries, int64_t T, int64_t N,
            int64_t block) {
  if (T < 0 || N < 0) return TANDEM_BAD_SHAPE;
  if (block < 1 || block > INT32_MAX) return TANDEM_BAD_VALUE;
  if (T && N && (!blocks || !lens || !entries)) return TANDEM_NULL_POINTER;
  parallel_for(T * N, block, [=](int64_t begin, int64_t end) {
    for (int64_t each = begin; each < end; ++each) {
      const bool none = blocks[each] < 0;
      const int64_t first = none ? 0 : blocks[each] * block, seen = none ? 0 : lens[each / N];
      for (int64_t i = 0; i < block; ++i)
        entries[each * block + i] = first + i < seen ? static_cast<int32_t>(first + i) : -1;
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::pool_expand

// block_max: the largest score of each block of entries.
//
//   scores  bf16 [T, S]              NaN counts as -inf
//   lens    i32 [T]                  entries that a row sees
//   best    bf16 [T, ceil(S / block)]   out; +inf for the block of the last seen entry, -inf beyond
//   block   entries of a block, at least 1
#include "parallel.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::block_max {

constexpr uint16_t kLow = 0xff80, kHigh = 0x7f80;

// Scores as integers that order like them; NaN is -inf and -0 is 0.
TANDEM_INLINE int16_t ordered(uint16_t score) {
  const int magnitude = score & 0x7fff;
  const int value = magnitude > kHigh ? -kHigh : score & 0x8000 ? -magnitude : magnitude;
  return static_cast<int16_t>(value);
}

TANDEM_INLINE uint16_t largest(const uint16_t *scores, int64_t count) {
  int16_t best = -kHigh;
  for (int64_t i = 0; i < count; ++i) {
    const int16_t value = ordered(scores[i]);
    best = value > best ? value : best;
  }
  best = best == kHigh ? kHigh - 1 : best;  // the largest finite one
  return static_cast<uint16_t>(best < 0 ? -best | 0x8000 : best);
}

int32_t run(const uint16_t *scores, const int32_t *lens, uint16_t *best, int64_t T, int64_t S,
            int64_t block) {
  if (T < 0 || S < 0) return TANDEM_BAD_SHAPE;
  if (block < 1 || block > INT32_MAX) return TANDEM_BAD_VALUE;
  if (T && S && (!scores || !lens || !best)) return TANDEM_NULL_POINTER;
  const int64_t blocks = (S + block - 1) / block;
  parallel_for(T * blocks, 2 * block, [=](int64_t begin, int64_t end) {
    int64_t t = begin / blocks, b = begin % blocks;
    for (int64_t each = begin; each < end; ++each) {
      const int64_t last = lens[t] > 0 ? (lens[t] - 1) / block : -1, first = b * block;
      const uint16_t *from = scores + t * S + first;
      const bool whole = block == 8 && first + 8 <= S;  // the usual size, unrolled
      best[each] = b > last    ? kLow
                   : b == last ? kHigh
                   : whole     ? largest(from, 8)
                               : largest(from, S - first < block ? S - first : block);
      if (++b == blocks) {
        b = 0;
        ++t;
      }
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::block_max

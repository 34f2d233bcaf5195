// block_max: the largest score of each block of entries.
//
//   scores  bf16 [T, S]              NaN counts as -inf
//   lens    i32 [T]                  entries that a row sees
//   best    bf16 [T, ceil(S / block)]   out; +inf for the block of the last seen entry, -inf beyond
//   block   entries of a block, at least 1
#include <cstring>

#include "parallel.h"
#include "registers.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::block_max {

constexpr uint16_t kLow = 0xff80, kHigh = 0x7f80;
constexpr int64_t kStep = 2 * kRegister, kUsual = 8;  // scores of a register, of a block

// Scores as integers that order like them; NaN is -inf and -0 is 0.
TANDEM_INLINE RegisterI16 ordered(const RegisterI16 &scores) {
  const RegisterI16 magnitude = scores & 0x7fff, negative = scores >> 15;
  const RegisterI16 value = (magnitude ^ negative) - negative, nan = magnitude > kHigh;
  return (nan & -kHigh) | (~nan & value);
}

TANDEM_INLINE RegisterI16 larger(const RegisterI16 &a, const RegisterI16 &b) {
  const RegisterI16 first = a > b;
  return (first & a) | (~first & b);
}

TANDEM_INLINE uint16_t score_of(int best) {
  best = best == kHigh ? kHigh - 1 : best;  // the largest finite one
  return static_cast<uint16_t>(best < 0 ? -best | 0x8000 : best);
}

uint16_t largest(const uint16_t *scores, int64_t count) {
  RegisterI16 best = RegisterI16{} - static_cast<int16_t>(kHigh);
  for (int64_t i = 0; i < count; i += kStep) {
    RegisterI16 some = RegisterI16{} + static_cast<int16_t>(kLow);
    std::memcpy(&some, scores + i, sizeof(uint16_t) * (count - i < kStep ? count - i : kStep));
    best = larger(best, ordered(some));
  }
  int most = -kHigh;
  for (int64_t i = 0; i < kStep; ++i) most = best[i] > most ? best[i] : most;
  return score_of(most);
}

// Of the blocks of eight scores in a register.
TANDEM_INLINE void largest_of_eight(const uint16_t *scores, uint16_t *best) {
  RegisterI16 some;
  std::memcpy(&some, scores, sizeof some);
  some = ordered(some);
  some = larger(some, (RegisterI16)((RegisterI32)some >> 16));
  some = larger(some, (RegisterI16)((RegisterI64)some >> 32));
  for (int64_t b = 0; b < kStep / kUsual; ++b)
    best[b] = score_of(some[8 * b] > some[8 * b + 4] ? some[8 * b] : some[8 * b + 4]);
}

// Blocks [begin, end) of a row of S scores of which `seen` are seen.
void row_part(const uint16_t *scores, int64_t S, int64_t seen, int64_t block, int64_t begin,
              int64_t end, uint16_t *best) {
  const int64_t last = seen > 0 ? (seen - 1) / block : -1;
  const int64_t full = last < end ? last : end;  // blocks whose largest score counts
  int64_t b = begin;
  if (block == kUsual)
    for (; b + kStep / kUsual <= full && b * kUsual + kStep <= S; b += kStep / kUsual)
      largest_of_eight(scores + b * kUsual, best + b);
  for (; b < full; ++b) {
    const int64_t left = S - b * block;
    best[b] = largest(scores + b * block, left < block ? left : block);
  }
  for (; b < end; ++b) best[b] = b == last ? kHigh : kLow;
}

int32_t run(const uint16_t *scores, const int32_t *lens, uint16_t *best, int64_t T, int64_t S,
            int64_t block) {
  if (T < 0 || S < 0) return TANDEM_BAD_SHAPE;
  if (block < 1 || block > INT32_MAX) return TANDEM_BAD_VALUE;
  if (T && S && (!scores || !lens || !best)) return TANDEM_NULL_POINTER;
  const int64_t blocks = (S + block - 1) / block;
  parallel_for(T * blocks, 2 * block, [=](int64_t begin, int64_t end) {
    for (int64_t each = begin; each < end;) {
      const int64_t t = each / blocks, first = each % blocks;
      const int64_t stop = blocks - first < end - each ? blocks : first + end - each;
      row_part(scores + t * S, S, lens[t], block, first, stop, best + t * blocks);
      each += stop - first;
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::block_max

// Rotary positions: pairs of neighbouring channels turned by the angles of a row.
//
// A pair of bf16 values is one 32-bit word, so sixteen pairs are turned in their places.
#pragma once

#include <cstdint>
#include <cstring>

#include "registers.h"
#include "vec.h"

namespace tandem::TANDEM_ISA {

TANDEM_INLINE VecU32 load_words(const void *p, int64_t count) {
  VecU32 words = {};
  if (count >= kLanes)
    std::memcpy(&words, p, sizeof words);
  else
    std::memcpy(&words, p, static_cast<size_t>(count) * sizeof(uint32_t));
  return words;
}

TANDEM_INLINE void store_words(void *p, const VecU32 &words, int64_t count) {
  if (count >= kLanes)
    std::memcpy(p, &words, sizeof words);
  else
    std::memcpy(p, &words, static_cast<size_t>(count) * sizeof(uint32_t));
}

// Pairs (even, odd) become (even c - odd s, even s + odd c), in f32 with one rounding.
TANDEM_INLINE RegisterU32 turn(const RegisterU32 &words, const Register &cosine,
                               const Register &sine) {
  const Register even = (Register)(words << 16), odd = (Register)(words & 0xffff0000u);
  return narrow_register(even * cosine - odd * sine) |
         (narrow_register(even * sine + odd * cosine) << 16);
}

#if !defined(__AVX512F__)
TANDEM_INLINE VecU32 turn(const VecU32 &words, const Vec &cosine, const Vec &sine) {
  RegisterU32 parts[kPartCount];
  Register cosines[kPartCount], sines[kPartCount];
  std::memcpy(parts, &words, sizeof words);
  std::memcpy(cosines, &cosine, sizeof cosine);
  std::memcpy(sines, &sine, sizeof sine);
  for (int i = 0; i < kPartCount; ++i) parts[i] = turn(parts[i], cosines[i], sines[i]);
  return load_whole<VecU32>(parts);
}
#endif

// The angles of a row.
struct Angles {
  const float *values;  // cosines of the pairs, then sines
  int64_t pairs;
  bool inverse;

  TANDEM_INLINE Vec cosine(int64_t pair, int64_t count) const { return lanes(pair, count); }

  TANDEM_INLINE Vec sine(int64_t pair, int64_t count) const {
    const Vec sine = lanes(pairs + pair, count);
    return inverse ? -sine : sine;
  }

 private:
  TANDEM_INLINE Vec lanes(int64_t first, int64_t count) const {
    return count >= kLanes ? load(values + first) : load_part(values + first, count);
  }
};

// Up to sixteen words of a row, of which word 0 is pair `first` of those that turn; the words of
// negative pairs stay. No word lies beyond the last pair.
TANDEM_INLINE VecU32 turn_words(const VecU32 &words, int64_t first, int64_t count,
                                const Angles &angles) {
  if (first >= 0) return turn(words, angles.cosine(first, count), angles.sine(first, count));
  if (first + count <= 0) return words;
  uint32_t mixed[kLanes] = {};
  std::memcpy(mixed, &words, sizeof words);
  const VecU32 tail = load_words(mixed - first, count + first);
  store_words(mixed - first,
              turn(tail, angles.cosine(0, count + first), angles.sine(0, count + first)),
              count + first);
  return load_words(mixed, kLanes);
}

}  // namespace tandem::TANDEM_ISA

// The order of scores (value descending, index ascending) as integers.
#pragma once

#include <cstdint>
#include <cstring>

#include "registers.h"

namespace tandem::TANDEM_ISA {

constexpr int32_t kLowestImage = -2139095041;  // of -inf

// f32 without NaN as an integer in the same order; both zeros have one image.
TANDEM_INLINE int32_t image(float x) {
  const int32_t bits = x == 0.0f ? 0 : static_cast<int32_t>(bits_of(x));
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

TANDEM_INLINE RegisterI32 image(const Register &x) {
  const RegisterI32 bits = (RegisterI32)x & ~(RegisterI32)(x == 0.0f);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

// The f32 of an image.
TANDEM_INLINE float preimage(int32_t key) {
  return float_of(static_cast<uint32_t>(key ^ ((key >> 31) & 0x7fffffff)));
}

// Value and index as one number: what comes first is largest.
TANDEM_INLINE uint64_t place_key(int32_t key, int64_t index) {
  return static_cast<uint64_t>(static_cast<uint32_t>(key) ^ 0x80000000u) << 32 |
         static_cast<uint32_t>(~index);
}
TANDEM_INLINE int32_t key_image(uint64_t key) {
  return static_cast<int32_t>(static_cast<uint32_t>(key >> 32) ^ 0x80000000u);
}
TANDEM_INLINE int32_t key_index(uint64_t key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}

// Lets item `at` of a heap, smallest first, sink to its place.
inline void sink(uint64_t *heap, int64_t count, int64_t at) {
  const uint64_t item = heap[at];
  for (int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
    if (child + 1 < count && heap[child + 1] < heap[child]) ++child;
    if (heap[child] >= item) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = item;
}

// A heap becomes a list, largest first.
inline void heap_to_list(uint64_t *heap, int64_t count) {
  for (int64_t left = count - 1; left > 0; --left) {
    const uint64_t least = heap[0];
    heap[0] = heap[left];
    heap[left] = least;
    sink(heap, left, 0);
  }
}

inline void sort_descending(uint64_t *items, int64_t count) {
  for (int64_t at = count / 2 - 1; at >= 0; --at) sink(items, count, at);
  heap_to_list(items, count);
}

// Whether any lane of a mask is set.
TANDEM_INLINE bool any(const RegisterI32 &mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
  uint64_t words[kRegister / 2], all = 0;
  std::memcpy(words, &mask, sizeof words);
  for (int i = 0; i < kRegister / 2; ++i) all |= words[i];
  return all != 0;
#endif
}

}  // namespace tandem::TANDEM_ISA

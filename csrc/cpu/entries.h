// Entries of a paged cache: codes of a row, then its scales, read as stored.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "codecs.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA {

typedef uint8_t EntryCodes __attribute__((vector_size(kLanes)));

// Sixteen codes. Subnormal ones, m 2^-9, are (1 + m / 8) 2^-6 - 2^-6.
TANDEM_INLINE Vec decode_e4m3(const VecU32 &codes) {
  const VecU32 magnitude = codes & 0x7fu, bits = magnitude << 20;
  const VecU32 normal = bits + (120u << 23);
  const VecU32 small = (VecU32)((Vec)(bits + (121u << 23)) - 0.015625f);
  const VecU32 number = magnitude < 8u ? small : normal;
  const VecU32 value = magnitude == 0x7fu ? VecU32{} + kNaN : number;
  return (Vec)(value | ((codes & 0x80u) << 24));
}

// Sixteen codes in the low nibbles of the lanes, whatever is above them.
TANDEM_INLINE Vec decode_e2m1(const VecU32 &codes) {
#if defined(__AVX512F__)
  const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                       -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  return (Vec)_mm512_permutexvar_ps((__m512i)codes, values);
#else
  const VecU32 magnitude = codes & 7u;
  const VecU32 normal = (magnitude << 22) + (126u << 23);
  const VecU32 small = (VecU32)(magnitude == 1u) & (126u << 23);
  return (Vec)((magnitude < 2u ? small : normal) | ((codes & 8u) << 28));
#endif
}

// The codes of sixteen channels, packed in eight bytes; the upper bits of the lanes hold others.
TANDEM_INLINE VecU32 unpack_e2m1(const uint8_t *packed) {
  uint32_t a, b;
  std::memcpy(&a, packed, sizeof a);
  std::memcpy(&b, packed + sizeof a, sizeof b);
  const VecU32 words = {a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b};
  const VecU32 places = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28};
  return words >> places;
}

TANDEM_INLINE int64_t entry_bytes(int64_t format, int64_t n) {
  return code_bytes(format, n) + n / group_of(format);
}

// put(k, values of channels k to k + 15) over an entry of n channels.
template <typename Put>
TANDEM_INLINE void decode_entry(int64_t format, const uint8_t *entry, int64_t n, const Put &put) {
  const uint8_t *scales = entry + code_bytes(format, n);
  if (format == TANDEM_MXFP8) {
    for (int64_t k = 0; k < n; k += kLanes) {
      EntryCodes codes;
      std::memcpy(&codes, entry + k, sizeof codes);
      put(k, decode_e4m3(__builtin_convertvector(codes, VecU32)) * decode_ue8m0(scales[k / 32]));
    }
  } else if (format == TANDEM_NVFP4) {
    for (int64_t k = 0; k < n; k += kLanes)
      put(k, decode_e2m1(unpack_e2m1(entry + k / 2)) * decode_e4m3(scales[k / 16]));
  } else {
    for (int64_t k = 0; k < n; k += kLanes)
      put(k, decode_e2m1(unpack_e2m1(entry + k / 2)) * decode_ue8m0(scales[k / 32]));
  }
}

// Whether every slot is below the number of entries; negative ones name none.
TANDEM_INLINE bool slots_inside(const int32_t *slots, int64_t count, int64_t entries) {
  int32_t highest = -1;
  for (int64_t i = 0; i < count; ++i) highest = slots[i] > highest ? slots[i] : highest;
  return highest < entries;
}

}  // namespace tandem::TANDEM_ISA

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
  const VecU32 places = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28};
#if defined(__AVX512F__)
  const VecU32 word = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  const __m128i both = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(packed));
  return (VecU32)_mm512_permutexvar_epi32((__m512i)word, _mm512_castsi128_si512(both)) >> places;
#else
  uint32_t a, b;
  std::memcpy(&a, packed, sizeof a);
  std::memcpy(&b, packed + sizeof a, sizeof b);
  const VecU32 upper = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  return (upper != 0 ? VecU32{} + b : VecU32{} + a) >> places;
#endif
}

TANDEM_INLINE int64_t entry_bytes(int64_t format, int64_t n) {
  return code_bytes(format, n) + n / group_of(format);
}

// Up to sixteen scales.
TANDEM_INLINE Vec decode_scales(int64_t format, const uint8_t *scales, int64_t count) {
  EntryCodes bytes = {};
  std::memcpy(&bytes, scales, count < kLanes ? static_cast<size_t>(count) : sizeof bytes);
  const VecU32 codes = __builtin_convertvector(bytes, VecU32);
  if (format == TANDEM_NVFP4) return decode_e4m3(codes);
  const VecU32 normal = codes == 0u ? VecU32{} + 0x400000u : codes << 23;
  return (Vec)(codes == 255u ? VecU32{} + kNaN : normal);
}

// put(k, values of channels k to k + 15 of each entry) over `Entries` entries of n channels in
// groups of one scale.
template <int64_t Format, int Entries, typename Put>
TANDEM_INLINE void decode_groups(const uint8_t *const *entries, int64_t n, const Put &put) {
  constexpr int64_t kGroup = Format == TANDEM_NVFP4 ? 16 : 32;
  for (int64_t start = 0; start < n; start += kLanes * kGroup) {
    const int64_t end = n - start < kLanes * kGroup ? n : start + kLanes * kGroup;
    float factors[Entries][kLanes];
    for (int e = 0; e < Entries; ++e)
      store(factors[e], decode_scales(Format, entries[e] + code_bytes(Format, n) + start / kGroup,
                                      (end - start) / kGroup));
    for (int64_t k = start; k < end; k += kLanes) {
      Vec values[Entries];
      for (int e = 0; e < Entries; ++e) {
        if constexpr (Format == TANDEM_MXFP8) {
          EntryCodes codes;
          std::memcpy(&codes, entries[e] + k, sizeof codes);
          values[e] = decode_e4m3(__builtin_convertvector(codes, VecU32));
        } else {
          values[e] = decode_e2m1(unpack_e2m1(entries[e] + k / 2));
        }
        values[e] *= factors[e][(k - start) / kGroup];
      }
      put(k, values);
    }
  }
}

template <int Entries, typename Put>
TANDEM_INLINE void decode_entries(int64_t format, const uint8_t *const *entries, int64_t n,
                                  const Put &put) {
  if (format == TANDEM_MXFP8)
    decode_groups<TANDEM_MXFP8, Entries>(entries, n, put);
  else if (format == TANDEM_NVFP4)
    decode_groups<TANDEM_NVFP4, Entries>(entries, n, put);
  else
    decode_groups<TANDEM_MXFP4, Entries>(entries, n, put);
}

// Sixteen values and sixteen others as bf16, side by side; for values that bf16 holds.
TANDEM_INLINE void store_beside(uint16_t *p, const Vec &a, const Vec &b) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  typedef uint16_t Places __attribute__((vector_size(2 * kLanes * sizeof(uint16_t))));
  const Places upper = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                        33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  _mm512_storeu_si512(p, _mm512_permutex2var_epi16((__m512i)a, (__m512i)upper, (__m512i)b));
#else
  const VecU16 first = __builtin_convertvector((VecU32)a >> 16, VecU16);
  const VecU16 second = __builtin_convertvector((VecU32)b >> 16, VecU16);
  std::memcpy(p, &first, sizeof first);
  std::memcpy(p + kLanes, &second, sizeof second);
#endif
}

// Whether every slot is below the number of entries; negative ones name none.
TANDEM_INLINE bool slots_inside(const int32_t *slots, int64_t count, int64_t entries) {
  int32_t highest = -1;
  for (int64_t i = 0; i < count; ++i) highest = slots[i] > highest ? slots[i] : highest;
  return highest < entries;
}

}  // namespace tandem::TANDEM_ISA

// Entries of a paged cache: codes of a row, then its scales, read as stored.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "codecs.h"
#include "registers.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA {

// A register of codes. Subnormal ones, m 2^-9, are (1 + m / 8) 2^-6 - 2^-6; NaN has no sign.
TANDEM_INLINE Register e4m3_values(const RegisterU32 &codes) {
  const RegisterU32 magnitude = codes & 0x7fu, bits = magnitude << 20;
  const RegisterU32 normal = bits + (120u << 23);
  const RegisterU32 small = (RegisterU32)((Register)(bits + (121u << 23)) - 0.015625f);
  const RegisterU32 number = (magnitude < 8u ? small : normal) | ((codes & 0x80u) << 24);
  return (Register)(magnitude == 0x7fu ? RegisterU32{} + kNaN : number);
}

TANDEM_INLINE Register ue8m0_values(const RegisterU32 &codes) {
  const RegisterU32 normal = codes == 0u ? RegisterU32{} + 0x400000u : codes << 23;
  return (Register)(codes == 255u ? RegisterU32{} + kNaN : normal);
}

// Of a register of channels, whose codes are packed two a byte.
TANDEM_INLINE Register e2m1_values(const uint8_t *packed) {
#if defined(__AVX512F__)
  const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                       -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  const RegisterU32 word = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  const RegisterU32 places = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28};
  const __m128i both = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(packed));
  const RegisterU32 words =
      (RegisterU32)_mm512_permutexvar_epi32((__m512i)word, _mm512_castsi128_si512(both));
  return (Register)_mm512_permutexvar_ps((__m512i)(words >> places), values);
#else
  uint32_t word = 0;
  std::memcpy(&word, packed, kRegister / 2);
#if defined(__AVX2__)
  const RegisterU32 places = {0, 4, 8, 12, 16, 20, 24, 28};
#else
  const RegisterU32 places = {0, 4, 8, 12};
#endif
  const RegisterU32 codes = (RegisterU32{} + word) >> places, magnitude = codes & 7u;
  const RegisterU32 normal = (magnitude << 22) + (126u << 23);
  const RegisterU32 small = (RegisterU32)(magnitude == 1u) & (126u << 23);
  return (Register)((magnitude < 2u ? small : normal) | ((codes & 8u) << 28));
#endif
}

TANDEM_INLINE int64_t entry_bytes(int64_t format, int64_t n) {
  return code_bytes(format, n) + n / group_of(format);
}

// Up to sixteen scales.
TANDEM_INLINE void decode_scales(int64_t format, const uint8_t *scales, int64_t count,
                                 float *values) {
  uint8_t bytes[kLanes] = {};
  std::memcpy(bytes, scales, count < kLanes ? static_cast<size_t>(count) : sizeof bytes);
  for (int i = 0; i < kLanes; i += kRegister) {
    const RegisterU32 codes = load_bytes(bytes + i);
    store_register(values + i, format == TANDEM_NVFP4 ? e4m3_values(codes) : ue8m0_values(codes));
  }
}

// put(k, a register of values from channel k on, of each entry) over `Entries` entries of n
// channels in groups of one scale.
template <int64_t Format, int Entries, typename Put>
TANDEM_INLINE void decode_groups(const uint8_t *const *entries, int64_t n, const Put &put) {
  constexpr int64_t kGroup = Format == TANDEM_NVFP4 ? 16 : 32;
  for (int64_t start = 0; start < n; start += kLanes * kGroup) {
    const int64_t end = n - start < kLanes * kGroup ? n : start + kLanes * kGroup;
    float factors[Entries][kLanes];
    for (int e = 0; e < Entries; ++e)
      decode_scales(Format, entries[e] + code_bytes(Format, n) + start / kGroup,
                    (end - start) / kGroup, factors[e]);
    for (int64_t k = start; k < end; k += kRegister) {
      Register values[Entries];
      for (int e = 0; e < Entries; ++e) {
        if constexpr (Format == TANDEM_MXFP8)
          values[e] = e4m3_values(load_bytes(entries[e] + k));
        else
          values[e] = e2m1_values(entries[e] + k / 2);
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

// Values of channels from k on of two entries that lie sixteen channels of the one beside sixteen
// of the other, as bf16; for values that bf16 holds.
TANDEM_INLINE void store_beside(uint16_t *p, int64_t k, const Register &a, const Register &b) {
#if defined(__AVX512BW__)
  typedef uint16_t Places __attribute__((vector_size(2 * kLanes * sizeof(uint16_t))));
  const Places upper = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                        33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  _mm512_storeu_si512(p + 2 * k, _mm512_permutex2var_epi16((__m512i)a, (__m512i)upper, (__m512i)b));
#else
  uint16_t *place = p + 2 * k - k % kLanes;
  store_halves(place, (RegisterU32)a >> 16);
  store_halves(place + kLanes, (RegisterU32)b >> 16);
#endif
}

// Whether every slot is below the number of entries; negative ones name none.
TANDEM_INLINE bool slots_inside(const int32_t *slots, int64_t count, int64_t entries) {
  int32_t highest = -1;
  for (int64_t i = 0; i < count; ++i) highest = slots[i] > highest ? slots[i] : highest;
  return highest < entries;
}

}  // namespace tandem::TANDEM_ISA

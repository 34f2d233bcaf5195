// Entries of a paged cache: codes of a row, then its scales, read as stored.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "codecs.h"
#include "register_codes.h"
#include "registers.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA {

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

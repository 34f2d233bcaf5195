// Values of the codes of small formats, a register at a time.
#pragma once

#include <cstdint>
#include <cstring>

#include "codecs.h"
#include "registers.h"

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

}  // namespace tandem::TANDEM_ISA

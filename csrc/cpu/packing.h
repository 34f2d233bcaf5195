// Codes in the lanes of registers to bytes; what is above a code in its lane is zero.
#pragma once

#include <cstdint>
#include <cstring>

#include "registers.h"

namespace tandem::TANDEM_ISA {

// The largest lane, of lanes that are not negative.
TANDEM_INLINE int32_t lanes_max(const RegisterI32 &v) {
  typedef int32_t Quarter __attribute__((vector_size(4 * sizeof(int32_t))));
  Quarter quarters[kRegister / 4];
  std::memcpy(quarters, &v, sizeof v);
  Quarter q = quarters[0];
  for (int i = 1; i < kRegister / 4; ++i) q = quarters[i] > q ? quarters[i] : q;
  const int32_t a = q[0] > q[2] ? q[0] : q[2], b = q[1] > q[3] ? q[1] : q[3];
  return a > b ? a : b;
}

#if defined(__AVX512F__)
template <int N>
TANDEM_INLINE void store_bytes(uint8_t *p, const RegisterU32 *v) {
  for (int i = 0; i < N; ++i) {
    const __m128i bytes = _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v[i]);
    std::memcpy(p + i * kLanes, &bytes, sizeof bytes);
  }
}

template <int N>
TANDEM_INLINE void store_nibbles(uint8_t *p, const RegisterU32 *v) {
  typedef uint64_t Pairs __attribute__((vector_size(sizeof *v)));
  typedef uint8_t Bytes __attribute__((vector_size(kLanes / 2)));
  for (int i = 0; i < N; ++i) {
    const Pairs pairs = (Pairs)v[i];  // the even lane is the lower half
    const Bytes bytes = __builtin_convertvector((pairs | pairs >> 28) & 255u, Bytes);
    std::memcpy(p + i * kLanes / 2, &bytes, sizeof bytes);
  }
}
#else
typedef uint8_t FourBytes __attribute__((vector_size(4 * kRegister)));
typedef uint16_t FourPairs __attribute__((vector_size(4 * kRegister)));
typedef uint8_t PairBytes __attribute__((vector_size(2 * kRegister)));

// The lanes of four registers.
TANDEM_INLINE FourBytes pack(const RegisterU32 *v) {
#if defined(__AVX2__)
  const __m256i low = _mm256_packus_epi32((__m256i)v[0], (__m256i)v[1]);
  const __m256i high = _mm256_packus_epi32((__m256i)v[2], (__m256i)v[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // halves pack by themselves
  return (FourBytes)_mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
#else
  FourBytes bytes;
  for (int i = 0; i < 4; ++i) {
    const RegisterBytes some = __builtin_convertvector(v[i], RegisterBytes);
    std::memcpy(reinterpret_cast<uint8_t *>(&bytes) + i * kRegister, &some, sizeof some);
  }
  return bytes;
#endif
}

template <int N>
TANDEM_INLINE void store_bytes(uint8_t *p, const RegisterU32 *v) {
  static_assert(N % 4 == 0);
  for (int i = 0; i < N; i += 4) {
    const FourBytes bytes = pack(v + i);
    std::memcpy(p + i * kRegister, &bytes, sizeof bytes);
  }
}

// The same of nibbles, two a byte, the even lane in the lower half.
template <int N>
TANDEM_INLINE void store_nibbles(uint8_t *p, const RegisterU32 *v) {
  RegisterU32 all[(N + 3) / 4 * 4] = {};
  for (int i = 0; i < N; ++i) all[i] = v[i];
  uint8_t room[(N + 3) / 4 * 2 * kRegister];
  for (int i = 0; i < N; i += 4) {
    const FourPairs pairs = (FourPairs)pack(all + i);
    const PairBytes bytes = __builtin_convertvector((pairs | pairs >> 4) & 0xff, PairBytes);
    std::memcpy(room + i * kRegister / 2, &bytes, sizeof bytes);
  }
  std::memcpy(p, room, N * kRegister / 2);
}
#endif

}  // namespace tandem::TANDEM_ISA

// Dot products of bf16 values: sums of exact products in 16 lanes.
//
// A product of two bf16 values is exact in f32, so a fused and an unfused multiply-add give the
// same bits, and the processor's own bf16 instruction is one way among others to get them. Its one
// difference, that it takes values below 2^-126 for zero, is beyond what the formats here hold.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "vec.h"

namespace tandem::TANDEM_ISA {

// 32 bf16 values.
typedef uint16_t VecBf16 __attribute__((vector_size(2 * kLanes * sizeof(uint16_t))));

TANDEM_INLINE VecBf16 load_bf16(const uint16_t *p) {
  VecBf16 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The last, incomplete step of a row: missing elements count as zero.
TANDEM_INLINE VecBf16 load_bf16_part(const uint16_t *p, int64_t count) {
  uint16_t padded[2 * kLanes] = {};
  std::memcpy(padded, p, static_cast<size_t>(count) * sizeof(uint16_t));
  return load_bf16(padded);
}

// sum + a * b where the product is exact.
TANDEM_INLINE Vec add_exact_product(const Vec &sum, const Vec &a, const Vec &b) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#else
  return sum + a * b;
#endif
}

// Lane l adds the products of elements 2 l + 1 and then 2 l.
TANDEM_INLINE Vec dot_pairs(const Vec &sum, const VecBf16 &a, const VecBf16 &b) {
#if defined(__AVX512BF16__)
  return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  const VecU32 x = (VecU32)a, y = (VecU32)b;
  const Vec odd = add_exact_product(sum, (Vec)(x & 0xffff0000u), (Vec)(y & 0xffff0000u));
  return add_exact_product(odd, (Vec)(x << 16), (Vec)(y << 16));
#endif
}

}  // namespace tandem::TANDEM_ISA

// The functions of functions.h in sixteen lanes: the same arithmetic, so the same bits.
#pragma once

#include <cstdint>

#include "vec.h"

namespace tandem::TANDEM_ISA {

typedef double VecF64 __attribute__((vector_size(kLanes * sizeof(double))));
typedef uint64_t VecU64 __attribute__((vector_size(kLanes * sizeof(uint64_t))));

// See exp_f32 of functions.h.
TANDEM_INLINE Vec exp_lanes(const Vec &x) {
  constexpr double kLog2e = 1.4426950408889634, kLn2 = 0.6931471805599453;
  constexpr double kToInteger = 6755399441055744.0;
  const Vec low = splat(-150.0f), high = splat(150.0f);
  const Vec bounded = x < low ? low : x > high ? high : x;
  const VecF64 v = __builtin_convertvector(bounded, VecF64);
  const VecF64 shifted = v * kLog2e + kToInteger;
  const VecF64 k = shifted - kToInteger;
  const VecF64 r = v - k * kLn2;
  VecF64 p = VecF64{} + 1.0 / 39916800.0;
  constexpr double kInverseFactorials[] = {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                                           1.0 / 720,     1.0 / 120,    1.0 / 24,    1.0 / 6,
                                           0.5,           1.0,          1.0};
  for (const double c : kInverseFactorials) p = p * r + c;
  const VecF64 power = (VecF64)(((VecU64)shifted + 1023) << 52);
  return __builtin_convertvector(p * power, Vec);
}

TANDEM_INLINE Vec sigmoid_lanes(const Vec &x) { return 1.0f / (1.0f + exp_lanes(-x)); }

}  // namespace tandem::TANDEM_ISA

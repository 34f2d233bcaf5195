// e^x and what is made of it. The C library's functions differ between its own CPU variants.
#pragma once

#include <cstdint>
#include <cstring>

#include "vec.h"

namespace tandem::TANDEM_ISA {

// Of e^x by the series of e^r, r = x - k ln 2, in double.
constexpr double kLog2e = 1.4426950408889634, kLn2 = 0.6931471805599453;
constexpr double kToInteger = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
constexpr double kFirstFactorial = 1.0 / 39916800.0;
constexpr double kInverseFactorials[] = {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                                         1.0 / 720,     1.0 / 120,    1.0 / 24,    1.0 / 6,
                                         0.5,           1.0,          1.0};

// e^x through a double polynomial: relative error before the final rounding below 1e-12. NaN stays
// NaN.
TANDEM_INLINE float exp_f32(float x) {
  const double v = x < -150.0f ? -150.0 : x > 150.0f ? 150.0 : static_cast<double>(x);
  const double shifted = v * kLog2e + kToInteger;
  const double k = shifted - kToInteger;
  const double r = v - k * kLn2;
  double p = kFirstFactorial;
  for (const double c : kInverseFactorials) p = p * r + c;
  uint64_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 1023) << 52;  // the low bits of `shifted` hold k; this makes the double 2^k
  double power;
  std::memcpy(&power, &bits, sizeof power);
  return static_cast<float>(p * power);
}

TANDEM_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

}  // namespace tandem::TANDEM_ISA

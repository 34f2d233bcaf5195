// e^x and log(1 + x) of sampling and routing, in f32.
//
// csrc/ascend/_elementary.h and backends/cuda/kernels/_elementary.py have the same polynomials, and
// only additions, multiplications and divisions that IEEE 754 rounds correctly occur: so weights of
// the same logits have the same bits on every backend, and with them the tokens that are drawn.
#pragma once

#include <cstdint>
#include <cstring>

#include "registers.h"

namespace tandem::TANDEM_ISA {

// The largest integer not above v, |v| < 2^30.
TANDEM_INLINE Register floor_of(const Register &v) {
#if defined(__AVX512F__)
  return (Register)_mm512_floor_ps((__m512)v);
#elif defined(__AVX2__)
  return (Register)_mm256_floor_ps((__m256)v);
#else
  const Register cut = __builtin_convertvector(__builtin_convertvector(v, RegisterI32), Register);
  return cut > v ? cut - 1.0f : cut;
#endif
}

// v * 2^n of an integral n from -150 to 0 and a v near 1, subnormal results included, one rounding.
TANDEM_INLINE Register times_power(const Register &v, const Register &n) {
#if defined(__AVX512F__)
  return (Register)_mm512_scalef_ps((__m512)v, (__m512)n);
#else
  const RegisterI32 whole = __builtin_convertvector(n, RegisterI32), half = whole >> 1;
  return v * (Register)((half + 127) << 23) * (Register)((whole - half + 127) << 23);
#endif
}

// e^x of N registers of x <= 0, to two units in the last place; NaN of NaN. Several together, for
// the steps of one wait for each other.
//
// x = n ln 2 + r with |r| <= ln(2) / 2 and a rounding, where the first part of ln 2 has so few bits
// that its product with n is exact. The series of e^r up to r^7 leaves out less than 2^-27.
template <int N>
TANDEM_INLINE void exp_together(const Register *x, Register *power) {
  constexpr float kInverse[] = {1.0f / 6.0f, 1.0f / 5.0f, 1.0f / 4.0f, 1.0f / 3.0f, 1.0f / 2.0f};
  Register whole[N], r[N], series[N];
  for (int i = 0; i < N; ++i) {
    const Register y = x[i] < -104.0f ? all_lanes(-104.0f) : x[i];  // e^-104 rounds to zero
    whole[i] = floor_of(y * 1.4426950408889634f + 0.5f);
    r[i] = (y - whole[i] * 0.693359375f) + whole[i] * 2.12194440e-4f;
    series[i] = 1.0f + r[i] * (1.0f / 7.0f);
  }
  for (const float inverse : kInverse)
    for (int i = 0; i < N; ++i) series[i] = 1.0f + r[i] * series[i] * inverse;
  for (int i = 0; i < N; ++i) power[i] = times_power(1.0f + r[i] * series[i], whole[i]);
}

template <int N>
TANDEM_INLINE void exp_negative(const Register *x, Register *power) {
  constexpr int kTogether = N < 4 ? N : 4;  // whose numbers registers hold
  for (int i = 0; i < N; i += kTogether) exp_together<kTogether>(x + i, power + i);
}

TANDEM_INLINE Register exp_negative(const Register &x) {
  Register power;
  exp_together<1>(&x, &power);
  return power;
}

TANDEM_INLINE float exp_negative(float x) { return exp_negative(all_lanes(x))[0]; }

// log(1 + z) of z from 0 to 1; NaN of NaN.
//
// 2 atanh(w) with w = z / (2 + z) <= 1/3: no digits cancel however small z is. The series up to
// w^17 leaves out less than 2^-31.
TANDEM_INLINE Register log1p_unit(const Register &z) {
  const Register twice = (z + z) / (2.0f + z);
  const Register square = 0.25f * twice * twice;
  Register series = all_lanes(1.0f / 17.0f);
  series = 1.0f / 15.0f + square * series;
  series = 1.0f / 13.0f + square * series;
  series = 1.0f / 11.0f + square * series;
  series = 1.0f / 9.0f + square * series;
  series = 1.0f / 7.0f + square * series;
  series = 1.0f / 5.0f + square * series;
  series = 1.0f / 3.0f + square * series;
  return twice + twice * (square * series);
}

// log(1 + x) of 0 <= x < 2^60 to a relative error below 1e-13, for sums that are kept in double.
//
// 1 + x = 2^n (1 + f) with f from -1/4 to 1/2. Where n is 0, f is x itself and no digit is lost;
// elsewhere the logarithm is at least 0.4. The series of 2 atanh(w), w = f / (2 + f), up to w^21
// leaves out less than 2e-16.
TANDEM_INLINE double log1p_double(double x) {
  const double sum = 1.0 + x;
  uint64_t bits;
  std::memcpy(&bits, &sum, sizeof bits);
  int64_t n = static_cast<int64_t>(bits >> 52) - 1023;
  if (bits & (uint64_t{1} << 51)) ++n;  // from 1.5 on: halve once more
  const uint64_t scale_bits = static_cast<uint64_t>(1023 - n) << 52;
  double scale;
  std::memcpy(&scale, &scale_bits, sizeof scale);
  const double f = n == 0 ? x : sum * scale - 1.0;
  const double w = f / (2.0 + f), square = w * w;
  double series = 1.0 / 21.0;
  for (int odd = 19; odd > 0; odd -= 2) series = 1.0 / odd + square * series;
  return static_cast<double>(n) * 0.6931471805599453 + 2.0 * w * series;
}

}  // namespace tandem::TANDEM_ISA

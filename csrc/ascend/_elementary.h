// Elementary functions by polynomials: good to two units in the last place, and the same bits
// wherever they run, on every backend (backends/cuda/kernels/_elementary.py has the same ones).
//
// Only additions, multiplications, fused multiply-adds and conversions occur, all of which round
// correctly. The device's own division and exponential are documented to within a unit, or not at
// all.
#pragma once

#include "kernel.h"

// 2^n, n from -126 to 127.
__simt_callee__ inline float power_of_two(int32_t n) { return __int_as_float((n + 127) << 23); }

// exp(x) of x <= 0, subnormal results included; NaN of NaN.
//
// x = n ln 2 + r with |r| <= ln(2) / 2 and a rounding, where the first part of ln 2 has so few bits
// that its product with n is exact. The series of exp(r) up to r^7 leaves out less than 2^-27.
__simt_callee__ inline float exp_negative(float x) {
  const float y = x < -104.0f ? -104.0f : x != x ? 0.0f : x;  // exp(-104) rounds to zero
  const float whole = floorf(y * 1.4426950408889634f + 0.5f);
  const float r = (y - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float series = 1.0f + r * (1.0f / 7.0f);
  series = 1.0f + r * series * (1.0f / 6.0f);
  series = 1.0f + r * series * (1.0f / 5.0f);
  series = 1.0f + r * series * (1.0f / 4.0f);
  series = 1.0f + r * series * (1.0f / 3.0f);
  series = 1.0f + r * series * (1.0f / 2.0f);
  series = 1.0f + r * series;
  const int32_t n = int32_t(whole);
  const int32_t half = n >> 1;
  const float value = series * power_of_two(half) * power_of_two(n - half);
  return x != x ? x : value;
}

// a / b rounded correctly, of normal a and b with a normal quotient; zeros, infinities and NaN as
// IEEE 754 has them. Of the device's quotient and its two neighbours the one that leaves the least:
// what is left is exact by a fused multiply-add, and no quotient lies half way between two floats.
__simt_callee__ inline float divide(float a, float b) {
  const float near = a / b;
  const int32_t bits = __float_as_int(near);
  const uint32_t size = uint32_t(bits) & 0x7FFFFFFFu;
  if (size < 0x00800001u || size > 0x7F7FFFFEu) return near;
  float best = near, least = fabsf(fmaf(-near, b, a));
  const float below = __int_as_float(bits - 1), above = __int_as_float(bits + 1);
  const float left_below = fabsf(fmaf(-below, b, a)), left_above = fabsf(fmaf(-above, b, a));
  if (left_below < least) {
    best = below;
    least = left_below;
  }
  return left_above < least ? above : best;
}

// x + y of pairs of a float and what it lost, with an error of about 2^-47 of it, for numbers of
// one sign.
__simt_callee__ inline float2 add_pairs(float2 x, float2 y) {
  const float sum = x.x + y.x;
  const float part = sum - x.x;
  const float lost = (x.x - (sum - part)) + (y.x - part) + (x.y + y.y);
  const float high = sum + lost;
  return make_float2(high, lost - (high - sum));
}

// Two floats of a sum as bits, for shuffles.
__simt_callee__ inline uint64_t pack_pair(float2 pair) {
  return uint64_t(__float_as_uint(pair.x)) << 32 | __float_as_uint(pair.y);
}
__simt_callee__ inline float2 unpack_pair(uint64_t bits) {
  return make_float2(__uint_as_float(uint32_t(bits >> 32)), __uint_as_float(uint32_t(bits)));
}
__simt_callee__ inline uint64_t add_packed(uint64_t a, uint64_t b) {
  return pack_pair(add_pairs(unpack_pair(a), unpack_pair(b)));
}

// log(1 + z) of z from 0 to 1; NaN of NaN.
//
// 2 atanh(w) with w = z / (2 + z) <= 1/3: no digits cancel however small z is. The series up to
// w^17 leaves out less than 2^-31.
__simt_callee__ inline float log1p_unit(float z) {
  const float twice = divide(z + z, 2.0f + z);
  const float square = 0.25f * twice * twice;
  float series = 1.0f / 17.0f;
  series = 1.0f / 15.0f + square * series;
  series = 1.0f / 13.0f + square * series;
  series = 1.0f / 11.0f + square * series;
  series = 1.0f / 9.0f + square * series;
  series = 1.0f / 7.0f + square * series;
  series = 1.0f / 5.0f + square * series;
  series = 1.0f / 3.0f + square * series;
  return twice + twice * (square * series);
}

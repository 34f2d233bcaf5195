// Functions of SIMT threads on single numbers.
//
// Written from the pages under "数学函数". The names of C's math.h (expf, logf, sqrtf, fmaf, fabsf,
// fmaxf, fminf, floorf, ceilf, rintf, roundf, truncf, isnan, isinf, isfinite ...) are the host's
// own: fmaf and the roundings are exact on both; the documentation states no bound for the others,
// and that expf, sqrtf and divisions flush subnormal numbers. A kernel whose bits matter uses
// csrc/ascend/_elementary.h instead.
#pragma once

#include <math.h>

#include "core.h"

inline int __float_as_int(const float x) { return tandem::emulation::bit_cast<int>(x); }
inline unsigned int __float_as_uint(const float x) {
  return tandem::emulation::bit_cast<unsigned int>(x);
}
inline float __int_as_float(const int x) { return tandem::emulation::bit_cast<float>(x); }
inline float __uint_as_float(const unsigned int x) { return tandem::emulation::bit_cast<float>(x); }

inline int __mulhi(int x, int y) { return int((int64_t(x) * y) >> 32); }
inline unsigned int __umulhi(unsigned int x, unsigned int y) { return (uint64_t(x) * y) >> 32; }
inline long long __mul64hi(long long x, long long y) {
  return (long long)((__int128(x) * y) >> 64);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return (unsigned long long)(((unsigned __int128)(x)*y) >> 64);
}

inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __popc(unsigned int x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline unsigned int umax(unsigned int x, unsigned int y) { return x > y ? x : y; }
inline unsigned int umin(unsigned int x, unsigned int y) { return x < y ? x : y; }
inline long long llmax(long long x, long long y) { return x > y ? x : y; }
inline long long llmin(long long x, long long y) { return x < y ? x : y; }
inline unsigned long long ullmax(unsigned long long x, unsigned long long y) {
  return x > y ? x : y;
}
inline unsigned long long ullmin(unsigned long long x, unsigned long long y) {
  return x < y ? x : y;
}

#define TANDEM_EXTREMES(type)                               \
  inline type max(type x, type y) { return x > y ? x : y; } \
  inline type min(type x, type y) { return x < y ? x : y; } \
  static_assert(true)
TANDEM_EXTREMES(int);
TANDEM_EXTREMES(unsigned int);
TANDEM_EXTREMES(long long);
TANDEM_EXTREMES(unsigned long long);
TANDEM_EXTREMES(long);
TANDEM_EXTREMES(unsigned long);
#undef TANDEM_EXTREMES

namespace tandem::emulation {

// A float as an integer: rounded, the nearest number of the type where it does not fit, 0 for NaN.
template <typename T>
T saturated(float x) {
  constexpr double kPast = double(std::numeric_limits<T>::max());
  if (x != x) return 0;
  if (double(x) >= kPast) return std::numeric_limits<T>::max();
  if (double(x) <= double(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  return T(x);
}

}  // namespace tandem::emulation

#define TANDEM_TO_INTEGER(suffix, round)                               \
  inline int __float2int_##suffix(const float x) {                     \
    return tandem::emulation::saturated<int>(round(x));                \
  }                                                                    \
  inline unsigned int __float2uint_##suffix(const float x) {           \
    return tandem::emulation::saturated<unsigned int>(round(x));       \
  }                                                                    \
  inline long long int __float2ll_##suffix(const float x) {            \
    return tandem::emulation::saturated<long long>(round(x));          \
  }                                                                    \
  inline unsigned long long int __float2ull_##suffix(const float x) {  \
    return tandem::emulation::saturated<unsigned long long>(round(x)); \
  }                                                                    \
  static_assert(true)
TANDEM_TO_INTEGER(rn, rintf);
TANDEM_TO_INTEGER(rz, truncf);
TANDEM_TO_INTEGER(rd, floorf);
TANDEM_TO_INTEGER(ru, ceilf);
TANDEM_TO_INTEGER(rna, roundf);
#undef TANDEM_TO_INTEGER

// To the nearest, ties to even.
inline float __int2float_rn(const int x) { return float(x); }
inline float __uint2float_rn(const unsigned int x) { return float(x); }
inline float __ll2float_rn(const long long int x) { return float(x); }
inline float __ull2float_rn(const unsigned long long int x) { return float(x); }

inline float __bfloat162float(const bfloat16_t x) { return float(x); }

// To the nearest, ties to even; like Cast it saturates unless the control register says otherwise.
bfloat16_t __float2bfloat16_rn(const float x);

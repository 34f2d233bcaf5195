// The functions of functions.h in the lanes of a register: the same arithmetic, so the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "functions.h"
#include "registers.h"

namespace tandem::TANDEM_ISA {

// Lanes that are worked on in double: those of a register, or what of them fits one.
#if defined(__AVX512F__)
constexpr int kDoubles = kRegister;
#else
constexpr int kDoubles = kRegister / 2;
#endif

typedef float FloatsF64 __attribute__((vector_size(kDoubles * sizeof(float))));
typedef double LanesF64 __attribute__((vector_size(kDoubles * sizeof(double))));
typedef uint64_t LanesU64 __attribute__((vector_size(kDoubles * sizeof(uint64_t))));

// See exp_f32 of functions.h; x from -150 to 150.
TANDEM_INLINE FloatsF64 exp_bounded(const FloatsF64 &x) {
  const LanesF64 v = __builtin_convertvector(x, LanesF64);
  const LanesF64 shifted = v * kLog2e + kToInteger;
  const LanesF64 k = shifted - kToInteger;
  const LanesF64 r = v - k * kLn2;
  LanesF64 p = LanesF64{} + kFirstFactorial;
  for (const double c : kInverseFactorials) p = p * r + c;
  const LanesF64 power = (LanesF64)(((LanesU64)shifted + 1023) << 52);
  return __builtin_convertvector(p * power, FloatsF64);
}

TANDEM_INLINE Register exp_lanes(const Register &x) {
  const Register low = all_lanes(-150.0f), high = all_lanes(150.0f);
  const Register bounded = x < low ? low : x > high ? high : x;
  FloatsF64 parts[kRegister / kDoubles];
  std::memcpy(parts, &bounded, sizeof parts);
  for (FloatsF64 &part : parts) part = exp_bounded(part);
  return load_whole<Register>(parts);
}

TANDEM_INLINE Register sigmoid_lanes(const Register &x) { return 1.0f / (1.0f + exp_lanes(-x)); }

}  // namespace tandem::TANDEM_ISA

// Arithmetic in single registers, of 4 to 16 lanes.
//
// What vec.h calls a vector is several registers of most instruction sets; compilers then keep it
// in memory between two operations and compare it lane by lane. Where lanes are independent of each
// other, going through them a register at a time gives the same bits without that.
#pragma once

#include <cstdint>
#include <cstring>

#include "dot.h"
#include "vec.h"

namespace tandem::TANDEM_ISA {

typedef int8_t RegisterI8 __attribute__((vector_size(4 * kRegister)));
typedef int16_t RegisterI16 __attribute__((vector_size(4 * kRegister)));
typedef int64_t RegisterI64 __attribute__((vector_size(4 * kRegister)));
typedef double RegisterF64 __attribute__((vector_size(8 * kRegister)));  // as many as of f32

TANDEM_INLINE Register all_lanes(float v) { return Register{} + v; }

TANDEM_INLINE Register load_register(const float *p) {
  Register v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// bf16 values.
TANDEM_INLINE Register load_register(const uint16_t *p) {
#if defined(__AVX512F__)
  return load(p);
#else
  RegisterHalf v;
  std::memcpy(&v, p, sizeof v);
  return (Register)(__builtin_convertvector(v, RegisterU32) << 16);
#endif
}

// The last, incomplete register of a row: missing elements count as zero.
template <typename T>
TANDEM_INLINE Register load_register_part(const T *p, int64_t count) {
  T padded[kRegister] = {};
  std::memcpy(padded, p, static_cast<size_t>(count) * sizeof(T));
  return load_register(padded);
}

template <typename R>
TANDEM_INLINE R load_whole(const void *p) {
  R v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

TANDEM_INLINE void store_register(float *p, const Register &v) { std::memcpy(p, &v, sizeof v); }

TANDEM_INLINE RegisterU32 load_bytes(const uint8_t *p) {
  RegisterBytes bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, RegisterU32);
}

// The lower halves of the lanes.
TANDEM_INLINE void store_halves(uint16_t *p, const RegisterU32 &v) {
  const RegisterHalf half = __builtin_convertvector(v, RegisterHalf);
  std::memcpy(p, &half, sizeof half);
}

// Rounded to bf16.
TANDEM_INLINE void store_register(uint16_t *p, const Register &v) {
#if defined(__AVX512F__)
  store(p, v);
#else
  store_halves(p, narrow_register(v));
#endif
}

// sum + a * b where the product is exact.
TANDEM_INLINE Register add_exact(const Register &sum, const Register &a, const Register &b) {
#if defined(__AVX512F__)
  return (Register)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Register)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__ARM_NEON)
  return (Register)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
  return sum + a * b;
#endif
}

// The lanes of the registers of a vector, added as `tree_sum` has it.
TANDEM_INLINE float lanes_sum(const Register *parts) {
  typedef float Quarter __attribute__((vector_size(4 * sizeof(float))));
  Quarter q;
  if constexpr (kPartCount == 1) {
    return tree_sum(load_whole<Vec>(parts));
  } else if constexpr (kPartCount == 2) {
    const Register half = parts[0] + parts[1];
    Quarter quarters[2];
    std::memcpy(quarters, &half, sizeof half);
    q = quarters[0] + quarters[1];
  } else {
    const Register sum = (parts[0] + parts[2]) + (parts[1] + parts[3]);
    std::memcpy(&q, &sum, sizeof q);
  }
  return (q[0] + q[2]) + (q[1] + q[3]);
}

// Sum of f(register) over a row of n, in 16 lanes: lane l adds l, l + 16, ... in order, then
// `tree_sum`. f(0) must be 0.
template <typename T, typename F>
TANDEM_INLINE float row_sum(const T *x, int64_t n, const F &f) {
  Register sums[kPartCount] = {};
  const auto add = [&](const T *p) TANDEM_BODY {
    unrolled<kPartCount>([&](auto i)
                             TANDEM_BODY { sums[i] += f(load_register(p + i() * kRegister)); });
  };
  const int64_t body = n / kLanes * kLanes;
  for (int64_t k = 0; k < body; k += kLanes) add(x + k);
  if (body < n) {
    T padded[kLanes] = {};
    std::memcpy(padded, x + body, static_cast<size_t>(n - body) * sizeof(T));
    add(padded);
  }
  return lanes_sum(sums);
}

// y = f(register, index of its first element) over a row of n.
template <typename X, typename Y, typename F>
TANDEM_INLINE void map_row(const X *x, Y *y, int64_t n, const F &f) {
  const int64_t body = n / kRegister * kRegister;
  for (int64_t k = 0; k < body; k += kRegister) store_register(y + k, f(load_register(x + k), k));
  if (body == n) return;
  Y padded[kRegister];
  store_register(padded, f(load_register_part(x + body, n - body), body));
  std::memcpy(y + body, padded, static_cast<size_t>(n - body) * sizeof(Y));
}

// Pairs of bf16 values, a word each, as the processor multiplies them.
struct Pairs {
#if defined(__AVX512BF16__)
  RegisterU32 words;

  TANDEM_INLINE static Pairs of(const RegisterU32 &v) { return {v}; }
  TANDEM_INLINE Register dot(const Register &sum, const Pairs &other) const {
    return (Register)_mm512_dpbf16_ps((__m512)sum, (__m512bh)words, (__m512bh)other.words);
  }
#else
  Register odd, even;

  TANDEM_INLINE static Pairs of(const RegisterU32 &v) {
    return {(Register)(v & 0xffff0000u), (Register)(v << 16)};
  }
  TANDEM_INLINE Register dot(const Register &sum, const Pairs &other) const {
    return add_exact(add_exact(sum, odd, other.odd), even, other.even);
  }
#endif

  TANDEM_INLINE static Pairs load(const void *p) {
    RegisterU32 v;
    std::memcpy(&v, p, sizeof v);
    return of(v);
  }

  // One word for all lanes.
  TANDEM_INLINE static Pairs all(const void *p) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return of((RegisterU32)_mm256_broadcast_ss(static_cast<const float *>(p)));
#elif defined(__ARM_NEON)
    return of((RegisterU32)vld1q_dup_u32(static_cast<const uint32_t *>(p)));
#else
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    return of(RegisterU32{} + word);
#endif
  }
};

// Registers of a step, and words that each of them meets, so that the sums stay in registers too.
#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int kStepRegisters = 4, kStepWords = 4;
#else
constexpr int kStepRegisters = 2, kStepWords = 4;
#endif

}  // namespace tandem::TANDEM_ISA

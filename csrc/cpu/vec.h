// Sixteen lanes of numbers, as the compiler's vectors: one register with AVX-512, two or four
// elsewhere.
//
// All instruction sets give the same bits: sources fix every order of summation, the build forbids
// contraction to fused multiply-add, and what a set's own instructions do is the same arithmetic.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

// Helpers are inlined, so that they are compiled for the instruction set of what calls them.
#define TANDEM_INLINE inline __attribute__((always_inline))
// What holds loops that need all registers is compiled by itself.
#define TANDEM_APART inline __attribute__((noinline))
// The same for the body of a loop that is given as a lambda, after its parameters.
#define TANDEM_BODY __attribute__((always_inline))

namespace tandem::TANDEM_ISA {

// f(0), f(1), ... f(N - 1), each with an argument that is known when compiled.
template <typename F, int... I>
TANDEM_INLINE void unrolled(const F &f, std::integer_sequence<int, I...>) {
  (f(std::integral_constant<int, I>{}), ...);
}

template <int N, typename F>
TANDEM_INLINE void unrolled(const F &f) {
  unrolled(f, std::make_integer_sequence<int, N>{});
}

constexpr int kLanes = 16;

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint32_t VecU32 __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef int32_t VecI32 __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef uint16_t VecU16 __attribute__((vector_size(kLanes * sizeof(uint16_t))));

// What one register holds: all of a vector with AVX-512, a part of it elsewhere.
#if defined(__AVX512F__)
constexpr int kRegister = 16;  // lanes
#elif defined(__AVX2__)
constexpr int kRegister = 8;
#else
constexpr int kRegister = 4;
#endif
constexpr int kPartCount = kLanes / kRegister;  // registers of a vector

typedef float Register __attribute__((vector_size(kRegister * sizeof(float))));
typedef uint32_t RegisterU32 __attribute__((vector_size(kRegister * sizeof(uint32_t))));
typedef int32_t RegisterI32 __attribute__((vector_size(kRegister * sizeof(int32_t))));
typedef uint16_t RegisterHalf __attribute__((vector_size(kRegister * sizeof(uint16_t))));
typedef uint8_t RegisterBytes __attribute__((vector_size(kRegister)));

TANDEM_INLINE uint32_t bits_of(float v) {
  uint32_t b;
  std::memcpy(&b, &v, sizeof b);
  return b;
}

TANDEM_INLINE float float_of(uint32_t b) {
  float v;
  std::memcpy(&v, &b, sizeof v);
  return v;
}

TANDEM_INLINE float widen(float v) { return v; }
TANDEM_INLINE float widen(uint16_t v) { return float_of(static_cast<uint32_t>(v) << 16); }

// f32 to bf16, to nearest, ties to even; NaN stays NaN.
TANDEM_INLINE uint16_t narrow(float v) {
  const uint32_t b = bits_of(v);
  const uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(v != v ? (b >> 16) | 0x40u : rounded);
}

TANDEM_INLINE Vec splat(float v) { return Vec{} + v; }

TANDEM_INLINE Vec load(const float *p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// bf16 values. With AVX-512 one instruction widens and narrows, which compilers do not find by
// themselves (with a mask of all lanes: gcc warns of its own header otherwise).
TANDEM_INLINE Vec load(const uint16_t *p) {
#if defined(__AVX512F__)
  VecU16 h;
  std::memcpy(&h, p, sizeof h);
  return (Vec)((VecU32)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)h) << 16);
#else
  RegisterU32 parts[kPartCount];
  for (int i = 0; i < kPartCount; ++i) {
    RegisterHalf h;
    std::memcpy(&h, p + i * kRegister, sizeof h);
    parts[i] = __builtin_convertvector(h, RegisterU32) << 16;
  }
  Vec v;
  std::memcpy(&v, parts, sizeof v);
  return v;
#endif
}

TANDEM_INLINE void store(float *p, const Vec &v) { std::memcpy(p, &v, sizeof v); }

// f32 to bf16 as `narrow` does it, in the lower halves.
TANDEM_INLINE RegisterU32 narrow_register(const Register &v) {
  const RegisterU32 b = (RegisterU32)v;
  return v != v ? (b >> 16) | 0x40u : (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
}

TANDEM_INLINE void store(uint16_t *p, const Vec &v) {
#if defined(__AVX512F__)
  const VecU16 h = (VecU16)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)narrow_register(v));
  std::memcpy(p, &h, sizeof h);
#else
  Register parts[kPartCount];
  std::memcpy(parts, &v, sizeof v);
  for (int i = 0; i < kPartCount; ++i) {
    const RegisterHalf h = __builtin_convertvector(narrow_register(parts[i]), RegisterHalf);
    std::memcpy(p + i * kRegister, &h, sizeof h);
  }
#endif
}

// A sum that a loop carries on. Where a vector is several registers, compilers keep it in memory
// from step to step, but not its parts.
struct Sum {
  Register parts[kPartCount];

  TANDEM_INLINE Sum() : Sum(Vec{}) {}
  TANDEM_INLINE explicit Sum(const Vec &v) { std::memcpy(parts, &v, sizeof v); }

  TANDEM_INLINE void operator+=(const Vec &v) {
    Register more[kPartCount];
    std::memcpy(more, &v, sizeof v);
    unrolled<kPartCount>([&](auto i) TANDEM_BODY { parts[i] += more[i]; });
  }

  TANDEM_INLINE Vec value() const {
    Vec v;
    std::memcpy(&v, parts, sizeof v);
    return v;
  }
};

// The last, incomplete step of a row: missing elements count as zero.
template <typename T>
TANDEM_INLINE Vec load_part(const T *p, int64_t count) {
  T padded[kLanes] = {};
  std::memcpy(padded, p, static_cast<size_t>(count) * sizeof(T));
  return load(padded);
}

template <typename T>
TANDEM_INLINE void store_part(T *p, const Vec &v, int64_t count) {
  T padded[kLanes];
  store(padded, v);
  std::memcpy(p, padded, static_cast<size_t>(count) * sizeof(T));
}

// The lanes joined as a tree, halves first: l with l + 8, + 4, + 2, + 1.
template <typename Lanes, typename Join>
TANDEM_INLINE auto tree(const Lanes &v, const Join &join) {
  using Item = std::decay_t<decltype(v[0])>;
  typedef Item Half __attribute__((vector_size(8 * sizeof(Item))));
  typedef Item Quarter __attribute__((vector_size(4 * sizeof(Item))));
  Half halves[2];
  std::memcpy(halves, &v, sizeof v);
  const Half half = join(halves[0], halves[1]);
  Quarter quarters[2];
  std::memcpy(quarters, &half, sizeof half);
  const Quarter q = join(quarters[0], quarters[1]);
  return join(join(q[0], q[2]), join(q[1], q[3]));
}

TANDEM_INLINE float tree_sum(const Vec &v) {
  return tree(v, [](const auto &a, const auto &b) TANDEM_BODY { return a + b; });
}

}  // namespace tandem::TANDEM_ISA

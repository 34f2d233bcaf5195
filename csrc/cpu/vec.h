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
typedef uint8_t VecU8 __attribute__((vector_size(kLanes * sizeof(uint8_t))));
typedef uint16_t VecU16 __attribute__((vector_size(kLanes * sizeof(uint16_t))));

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

// One instruction each, which compilers do not find by themselves (with a mask of all lanes: gcc
// warns of its own header otherwise).
TANDEM_INLINE VecU32 widen_lanes(const VecU16 &v) {
#if defined(__AVX512F__)
  return (VecU32)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)v);
#else
  return __builtin_convertvector(v, VecU32);
#endif
}

TANDEM_INLINE VecU16 low_halves(const VecU32 &v) {
#if defined(__AVX512F__)
  return (VecU16)_mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)v);
#else
  return __builtin_convertvector(v, VecU16);
#endif
}

TANDEM_INLINE VecU8 low_bytes(const VecU32 &v) {
#if defined(__AVX512F__)
  return (VecU8)_mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v);
#else
  return __builtin_convertvector(v, VecU8);
#endif
}

// f32 to bf16, to nearest, ties to even; NaN stays NaN.
TANDEM_INLINE uint16_t narrow(float v) {
  const uint32_t b = bits_of(v);
  const uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(v != v ? (b >> 16) | 0x40u : rounded);
}

// x where v is NaN, else y, and x where a > b, else y, by lanes; a and b below 2^31. Without
// AVX-512 compilers compare vectors of this width one element after the other.
TANDEM_INLINE VecU32 where_above(const VecU32 &a, const VecU32 &b, const VecU32 &x,
                                 const VecU32 &y) {
#if defined(__AVX512F__)
  return a > b ? x : y;
#else
  return y ^ ((x ^ y) & (VecU32)((VecI32)(b - a) >> 31));
#endif
}

TANDEM_INLINE VecU32 where_above(const VecU32 &a, uint32_t b, const VecU32 &x, const VecU32 &y) {
  return where_above(a, VecU32{} + b, x, y);
}

TANDEM_INLINE VecU32 where_nan(const Vec &v, const VecU32 &x, const VecU32 &y) {
#if defined(__AVX512F__)
  return v != v ? x : y;
#else
  return where_above((VecU32)v & 0x7fffffffu, 0x7f800000u, x, y);
#endif
}

TANDEM_INLINE Vec splat(float v) { return Vec{} + v; }

TANDEM_INLINE Vec load(const float *p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

TANDEM_INLINE Vec load(const uint16_t *p) {
  VecU16 h;
  std::memcpy(&h, p, sizeof h);
  return (Vec)(widen_lanes(h) << 16);
}

TANDEM_INLINE void store(float *p, const Vec &v) { std::memcpy(p, &v, sizeof v); }

TANDEM_INLINE void store(uint16_t *p, const Vec &v) {
  const VecU32 b = (VecU32)v;
  const VecU32 rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  const VecU32 bits = where_nan(v, (b >> 16) | 0x40u, rounded);
  const VecU16 h = low_halves(bits);
  std::memcpy(p, &h, sizeof h);
}

// A sum that a loop carries on. Where a vector is several registers, compilers keep it in memory
// from step to step, but not its parts.
struct Sum {
#if defined(__AVX512F__)
  static constexpr int kParts = 1;
#elif defined(__AVX__)
  static constexpr int kParts = 2;
#else
  static constexpr int kParts = 4;
#endif
  typedef float Part __attribute__((vector_size(kLanes / kParts * sizeof(float))));
  Part parts[kParts];

  TANDEM_INLINE Sum() : Sum(Vec{}) {}
  TANDEM_INLINE explicit Sum(const Vec &v) { std::memcpy(parts, &v, sizeof v); }

  TANDEM_INLINE void operator+=(const Vec &v) {
    Part more[kParts];
    std::memcpy(more, &v, sizeof v);
    unrolled<kParts>([&](auto i) TANDEM_BODY { parts[i] += more[i]; });
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

TANDEM_INLINE uint32_t tree_max(const VecU32 &v) {
  return tree(v, [](const auto &a, const auto &b) TANDEM_BODY { return a > b ? a : b; });
}

TANDEM_INLINE void store_bytes(uint8_t *p, const VecU32 &v) {
  const VecU8 bytes = low_bytes(v);
  std::memcpy(p, &bytes, sizeof bytes);
}

// The lowest four bits of the lanes, two a byte, the even lane in the low ones.
TANDEM_INLINE void store_nibbles(uint8_t *p, const VecU32 &v) {
  typedef uint64_t Pairs __attribute__((vector_size(sizeof v)));
  typedef uint8_t Bytes __attribute__((vector_size(kLanes / 2)));
  const Pairs pairs = (Pairs)v;  // the even lane is the lower half
  const Bytes bytes = __builtin_convertvector((pairs | pairs >> 28) & 255u, Bytes);
  std::memcpy(p, &bytes, sizeof bytes);
}

// Sum of f(v) over a row of n, in 16 lanes: lane l adds l, l + 16, ... in order, then `tree_sum`.
template <typename T, typename F>
TANDEM_INLINE float row_sum(const T *x, int64_t n, const F &f) {
  Sum sum;
  const int64_t body = n / kLanes * kLanes;
  for (int64_t k = 0; k < body; k += kLanes) sum += f(load(x + k));
  if (body < n) sum += f(load_part(x + body, n - body));  // f(0) must be 0
  return tree_sum(sum.value());
}

// y = f(vector, index of its first element) over a row of n.
template <typename X, typename Y, typename F>
TANDEM_INLINE void map_row(const X *x, Y *y, int64_t n, const F &f) {
  const int64_t body = n / kLanes * kLanes;
  for (int64_t k = 0; k < body; k += kLanes) store(y + k, f(load(x + k), k));
  if (body < n) store_part(y + body, f(load_part(x + body, n - body), body), n - body);
}

}  // namespace tandem::TANDEM_ISA

// Products of a few rows with a small matrix, each output one dot product in a fixed order.
//
// The order of a sum is that of `dot_pairs` over the row, then `tree_sum`, whatever the tile: so a
// row has the same bits alone and among others. Matrices in f32 are summed like `row_sum`.
#pragma once

#include "dot.h"
#include "parallel.h"
#include "registers.h"
#include "vec.h"

namespace tandem::TANDEM_ISA {

constexpr int kTileOutputs = 4;
#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int kTileRows = 4;
#else
constexpr int kTileRows = 2;  // as many sums as 16 registers hold
#endif
// Elements that a matrix of short rows is fetched ahead, which processors do by themselves along
// long rows only.
constexpr int64_t kAhead = 4096;
constexpr int64_t kRowsInCache = 64;  // that a thread multiplies with all of its outputs

#if defined(__AVX512F__)
// Lanes of a, from 0 on, and of b, from 16 on.
template <int... Lane>
TANDEM_INLINE Vec pick(const Vec &a, const Vec &b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, Lane...);
#else
  return __builtin_shuffle(a, b, VecI32{Lane...});
#endif
}

// The sums over groups of G lanes of a and then of b go on as groups of half as many lanes.
template <int G>
TANDEM_INLINE Vec halve(const Vec &a, const Vec &b) {
  static_assert(G == 16 || G == 8 || G == 4 || G == 2);
  if constexpr (G == 16)
    return pick<0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23>(a, b) +
           pick<8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31>(a, b);
  else if constexpr (G == 8)
    return pick<0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27>(a, b) +
           pick<4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31>(a, b);
  else if constexpr (G == 4)
    return pick<0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29>(a, b) +
           pick<2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31>(a, b);
  else
    return pick<0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30>(a, b) +
           pick<1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31>(a, b);
}

// `tree_sum` of four vectors at once, in lanes 0 to 3.
TANDEM_INLINE Vec tree_sums(const Vec *v) {
  const Vec four = halve<8>(halve<16>(v[0], v[1]), halve<16>(v[2], v[3]));
  const Vec two = halve<4>(four, four);
  return halve<2>(two, two);
}

template <typename Emit>
TANDEM_INLINE void emit_sums(int r, const Vec &sums, const Emit &emit) {
  float values[kLanes];
  store(values, sums);
  emit(r, values);
}

// emit(r, x row r . w rows 0 to C - 1) for R rows; C is 1 or 4.
template <int R, int C, typename Emit>
TANDEM_INLINE void dot_tile(const uint16_t *x, const uint16_t *w, int64_t K, const Emit &emit) {
  Vec acc[R][kTileOutputs];
  for (int i = 0; i < R * kTileOutputs; ++i) acc[i / kTileOutputs][i % kTileOutputs] = Vec{};
  const bool short_rows = K < kAhead / 2;
  int64_t k = 0;
  const auto step = [&](const auto &at) {
    VecBf16 rows[R];
    for (int r = 0; r < R; ++r) rows[r] = at(x + r * K);
    for (int c = 0; c < C; ++c) {
      const VecBf16 own = at(w + c * K);
      if (short_rows) __builtin_prefetch(w + c * K + k + kAhead, 0, 2);
      for (int r = 0; r < R; ++r) acc[r][c] = dot_pairs(acc[r][c], rows[r], own);
    }
  };
  for (; k + 2 * kLanes <= K; k += 2 * kLanes)
    step([k](const uint16_t *p) { return load_bf16(p + k); });
  if (k < K) step([k, K](const uint16_t *p) { return load_bf16_part(p + k, K - k); });
  for (int r = 0; r < R; ++r) emit_sums(r, tree_sums(acc[r]), emit);
}

template <int R, int C, typename Emit>
TANDEM_INLINE void dot_tile(const uint16_t *x, const float *w, int64_t K, const Emit &emit) {
  const int64_t body = K / kLanes * kLanes;
  for (int r = 0; r < R; ++r, x += K) {
    Vec acc[kTileOutputs] = {};
    for (int64_t k = 0; k < body; k += kLanes)
      for (int c = 0; c < C; ++c) acc[c] += load(x + k) * load(w + c * K + k);
    for (int c = 0; c < C && body < K; ++c)
      acc[c] += load_part(x + body, K - body) * load_part(w + c * K + body, K - body);
    emit_sums(r, tree_sums(acc), emit);
  }
}
#else
// What a register's lanes take of rows in a step: of bf16 matrices two values each, of f32 ones
// one.
template <typename W>
struct Taken;

template <>
struct Taken<uint16_t> {
  static constexpr int64_t kStep = 2 * kLanes;
  using Value = Pairs;
  TANDEM_INLINE static Value load(const uint16_t *p, int part) {
    return Pairs::load(p + 2 * kRegister * part);
  }
  TANDEM_INLINE static Register add(const Register &sum, const Value &x, const Value &w) {
    return x.dot(sum, w);
  }
};

template <>
struct Taken<float> {
  static constexpr int64_t kStep = kLanes;
  using Value = Register;
  template <typename T>
  TANDEM_INLINE static Value load(const T *p, int part) {
    return load_register(p + kRegister * part);
  }
  TANDEM_INLINE static Register add(const Register &sum, const Value &x, const Value &w) {
    return sum + x * w;
  }
};

// Adds a step of R rows of x and C rows of w to parts [first, first + P) of the lanes.
template <int R, int C, int P, typename W>
TANDEM_INLINE void add_step(const uint16_t *x, int64_t x_stride, const W *w, int64_t w_stride,
                            int first, Register (*sums)[C][P]) {
  unrolled<P>([&](auto p) TANDEM_BODY {
    typename Taken<W>::Value rows[R];
    unrolled<R>([&](auto r)
                    TANDEM_BODY { rows[r] = Taken<W>::load(x + r() * x_stride, first + p()); });
    unrolled<C>([&](auto c) TANDEM_BODY {
      const auto own = Taken<W>::load(w + c() * w_stride, first + p());
      unrolled<R>([&](auto r) TANDEM_BODY {
        sums[r()][c()][p()] = Taken<W>::add(sums[r()][c()][p()], rows[r], own);
      });
    });
  });
}

// emit(r, x row r . w rows 0 to C - 1) for R rows; C is 1 or 4. As many parts of the lanes at a
// time as keep the sums in registers.
template <int R, int C, typename W, typename Emit>
TANDEM_INLINE void dot_tile(const uint16_t *x, const W *w, int64_t K, const Emit &emit) {
  constexpr int kMost = kTileRows * kTileOutputs / (R * C);
  constexpr int P = kMost < kPartCount ? kMost : kPartCount;
  constexpr int64_t kStep = Taken<W>::kStep;
  const int64_t body = K / kStep * kStep, rest = K - body;
  const bool short_rows = K < kAhead / 2;
  uint16_t x_rest[R][kStep] = {};
  W w_rest[C][kStep] = {};
  for (int r = 0; r < R && rest; ++r)
    std::memcpy(x_rest[r], x + r * K + body, static_cast<size_t>(rest) * sizeof *x);
  for (int c = 0; c < C && rest; ++c)
    std::memcpy(w_rest[c], w + c * K + body, static_cast<size_t>(rest) * sizeof *w);
  Register lanes[R][C][kPartCount];
  for (int part = 0; part < kPartCount; part += P) {
    Register sums[R][C][P] = {};
    for (int64_t k = 0; k < body; k += kStep) {
      for (int c = 0; c < C && short_rows && !part; ++c)
        __builtin_prefetch(w + c * K + k + kAhead, 0, 2);
      add_step<R, C, P>(x + k, K, w + k, K, part, sums);
    }
    if (rest) add_step<R, C, P>(x_rest[0], kStep, w_rest[0], kStep, part, sums);
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) std::memcpy(&lanes[r][c][part], sums[r][c], sizeof sums[r][c]);
  }
  for (int r = 0; r < R; ++r) {
    float values[C];
    for (int c = 0; c < C; ++c) values[c] = lanes_sum(lanes[r][c]);
    emit(r, values);
  }
}
#endif

template <int C, typename W, typename Emit>
inline void emit_rows(const uint16_t *x, const W *w, int64_t K, int64_t row, int64_t end,
                      int64_t output, const Emit &emit) {
  const auto own = [&](int r, const float *values) { emit(row + r, output, C, values); };
  for (; row + kTileRows <= end; row += kTileRows)
    dot_tile<kTileRows, C>(x + row * K, w + output * K, K, own);
  for (; row < end; ++row) dot_tile<1, C>(x + row * K, w + output * K, K, own);
}

// emit(row, output, count, products of x row with w rows from `output` on) for x bf16 [T, K] and
// w [N, K]; threads share the outputs.
template <typename W, typename Emit>
inline void each_dot(const uint16_t *x, const W *w, int64_t T, int64_t K, int64_t N,
                     const Emit &emit) {
  if (T == 0) return;
  const int64_t tiles = (N + kTileOutputs - 1) / kTileOutputs;
  parallel_for(tiles, kTileOutputs * K * ((T + 7) / 8), [&](int64_t first, int64_t last) {
    for (int64_t row = 0; row < T; row += kRowsInCache) {
      const int64_t end = row + kRowsInCache < T ? row + kRowsInCache : T;
      for (int64_t tile = first; tile < last; ++tile) {
        int64_t output = tile * kTileOutputs;
        if (output + kTileOutputs <= N)
          emit_rows<kTileOutputs>(x, w, K, row, end, output, emit);
        else
          for (; output < N; ++output) emit_rows<1>(x, w, K, row, end, output, emit);
      }
    }
  });
}

}  // namespace tandem::TANDEM_ISA

// Products of a few rows with a small matrix, each output one dot product in a fixed order.
//
// The order of a sum is that of `dot_pairs` over the row, then `tree_sum`, whatever the tile: so a
// row has the same bits alone and among others. Matrices in f32 are summed like `row_sum`.
#pragma once

#include "dot.h"
#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA {

constexpr int kTileRows = 4, kTileOutputs = 4;
constexpr int64_t kRowsInCache = 64;  // that a thread multiplies with all of its outputs

// sums[r][c] = x row r . w row c, for R rows and C outputs.
template <int R, int C>
TANDEM_INLINE void dot_tile(const uint16_t *x, const uint16_t *w, int64_t K, float (*sums)[C]) {
  Vec acc[R][C] = {};
  const auto step = [&](const auto &at) {
    VecBf16 rows[R];
    for (int r = 0; r < R; ++r) rows[r] = at(x + r * K);
    for (int c = 0; c < C; ++c) {
      const VecBf16 own = at(w + c * K);
      for (int r = 0; r < R; ++r) acc[r][c] = dot_pairs(acc[r][c], rows[r], own);
    }
  };
  int64_t k = 0;
  for (; k + 2 * kLanes <= K; k += 2 * kLanes)
    step([k](const uint16_t *p) { return load_bf16(p + k); });
  if (k < K) step([k, K](const uint16_t *p) { return load_bf16_part(p + k, K - k); });
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) sums[r][c] = tree_sum(acc[r][c]);
}

template <int R, int C>
TANDEM_INLINE void dot_tile(const uint16_t *x, const float *w, int64_t K, float (*sums)[C]) {
  const int64_t body = K / kLanes * kLanes;
  for (int r = 0; r < R; ++r) {
    Vec acc[C] = {};
    for (int64_t k = 0; k < body; k += kLanes)
      for (int c = 0; c < C; ++c) acc[c] += load(x + r * K + k) * load(w + c * K + k);
    for (int c = 0; c < C; ++c) {
      if (body < K)
        acc[c] += load_part(x + r * K + body, K - body) * load_part(w + c * K + body, K - body);
      sums[r][c] = tree_sum(acc[c]);
    }
  }
}

template <int R, int C, typename W, typename Emit>
inline void emit_tile(const uint16_t *x, const W *w, int64_t K, int64_t row, int64_t output,
                      const Emit &emit) {
  float sums[R][C];
  dot_tile<R, C>(x + row * K, w + output * K, K, sums);
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) emit(row + r, output + c, sums[r][c]);
}

template <int C, typename W, typename Emit>
inline void emit_rows(const uint16_t *x, const W *w, int64_t K, int64_t row, int64_t end,
                      int64_t output, const Emit &emit) {
  for (; row + kTileRows <= end; row += kTileRows)
    emit_tile<kTileRows, C>(x, w, K, row, output, emit);
  for (; row < end; ++row) emit_tile<1, C>(x, w, K, row, output, emit);
}

// emit(row, output, x row . w row) for x bf16 [T, K] and w [N, K]; threads share the outputs.
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

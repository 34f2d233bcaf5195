// Matrix products where a register holds 16 lanes; the order of sums stands in products.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dots.h"
#include "operands_wide.h"
#include "product.h"

namespace tandem::TANDEM_ISA {

// totals += tree_sum of each vector, four at a time.
template <int Count>
TANDEM_INLINE void add_tree_sums(const Vec *sums, float *totals) {
  if constexpr (Count % 4 == 0) {
    for (int i = 0; i < Count; i += 4) {
      float four[kLanes];
      store(four, tree_sums(sums + i));
      for (int j = 0; j < 4; ++j) totals[i + j] += four[j];
    }
  } else {
    for (int i = 0; i < Count; ++i) totals[i] += tree_sum(sums[i]);
  }
}

// ---- few rows: weights go from memory through registers --------------------------------------

// Four steps of a row of weights from element k, of which `left` are in the row. fp4 values get
// their scales, the others are as stored.
template <int64_t Format>
TANDEM_INLINE void chunk_of(const uint8_t *row, const RowScales &scales, int64_t k, int64_t left,
                            Step *w) {
  if constexpr (Format == TANDEM_BF16) {
    uint8_t room[4 * 64];
    const uint8_t *codes = whole<4 * 64>(row + 2 * k, 2 * left, room);
    for (int s = 0; s < 4; ++s)
      w[s] = step_of(load_bf16(reinterpret_cast<const uint16_t *>(codes + 64 * s)));
  } else if constexpr (Format == TANDEM_FP8_BLOCK32) {
    uint8_t room[2 * 64];
    const uint8_t *codes = whole<2 * 64>(row + k, left, room);
    decode_fp8(codes, w);
    decode_fp8(codes + 64, w + 2);
  } else {
    uint8_t room[64];
    decode_fp4(whole<64>(row + k / 2, left / 2, room), scale_at(scales, k / kChunk), w);
  }
}

// Sums of a block of K for M rows of x, `stride` apart, and R rows of weights, lanes not yet added.
template <int M, int R, int64_t Format>
TANDEM_INLINE void block_lanes(const Item *x, int64_t stride, const uint8_t *const *rows,
                               const uint8_t *const *scales, int64_t size, Fetch &fetch,
                               Vec (*sums)[R]) {
  constexpr int Q = R % 2 == 0 ? 2 : 1;  // rows of weights that meet a loaded part of x
  RowScales row[R];
  for (int r = 0; r < R; ++r) {
    for (int m = 0; m < M; ++m) sums[m][r] = Vec{};
    if (Format == TANDEM_MXFP4) row[r] = row_scales(scales[r], size / 32);
  }
  const auto chunk = [&](int64_t k, int64_t left) TANDEM_BODY {
    fetch.bytes(R * kChunkBytes<Format>);
    for (int r = 0; r < R; r += Q) {
      Step w[Q][4];
      for (int q = 0; q < Q; ++q) chunk_of<Format>(rows[r + q], row[r + q], k, left, w[q]);
      for (int m = 0; m < M; ++m)
        for (int s = 0; s < 4; ++s) {
          const Step xs = load_step(x + m * stride + k + s * kStep);
          for (int q = 0; q < Q; ++q) sums[m][r + q] = dot(sums[m][r + q], w[q][s], xs);
        }
    }
  };
  int64_t k = 0;
  for (; k + kChunk <= size; k += kChunk) chunk(k, kChunk);
  if (k < size) chunk(k, size - k);
}

// Columns [begin, end), R at a time, elements [first, last) of K; x from element `first`, already
// scaled where the format has blocks. Adds to their sums; returns where it stopped.
template <int M, int R, int64_t Format>
TANDEM_INLINE int64_t columns(const Shape &shape, const Product &p, const Item *x, int64_t stride,
                              int64_t first, int64_t last, int64_t begin, int64_t end,
                              float (*totals)[kScaleRows]) {
  int64_t n = begin;
  for (; n + R <= end; n += R) {
    const uint8_t *start = p.codes + n * shape.row_bytes();
    const int64_t bytes = R * shape.row_bytes();
    Fetch fetch{start + (R == 1 ? kNear : bytes), R == 1 || bytes <= kNear};
    for (int64_t k0 = first; k0 < last; k0 += kSumBlock) {
      const int64_t size = last - k0 < kSumBlock ? last - k0 : kSumBlock;
      const uint8_t *rows[R], *scales[R];
      for (int r = 0; r < R; ++r) {
        rows[r] = start + r * shape.row_bytes() + k0 / kChunk * kChunkBytes<Format>;
        scales[r] = p.scales + (n + r) * shape.scale_columns() + k0 / 32;
      }
      Vec sums[M][R];
      block_lanes<M, R, Format>(x + (k0 - first), stride, rows, scales, size, fetch, sums);
      for (int m = 0; m < M; ++m) add_tree_sums<R>(sums[m], totals[m] + n % kScaleRows);
    }
  }
  return n;
}

// Columns [begin, end), at most 32 that share fp8 scales, of M rows.
template <int M, int64_t Format>
TANDEM_APART void few_rows(const Shape &shape, const Product &p, int64_t begin, int64_t end) {
  // One row of weights after the other is what memory gives fastest; where they are decoded,
  // several at a time hide how long that takes.
  constexpr int kMany = M > 2 || (M == 1 && Format == TANDEM_FP8_BLOCK32) ? 2 : 4;
  constexpr int64_t kSpan = (M == 1 ? 4 : 1) * kSumBlock;  // elements that are scaled at a time
  float totals[M][kScaleRows] = {};
  alignas(64) Item scaled_x[M][kSpan + kStep];
  for (int64_t first = 0; first < shape.K; first += kSpan) {
    const int64_t last = shape.K - first < kSpan ? shape.K : first + kSpan;
    const Item *x = p.x + first;
    int64_t stride = shape.stride();
    if (Format == TANDEM_FP8_BLOCK32) {
      const uint8_t *scales = p.scales + begin / kScaleRows * shape.scale_columns() + first / 32;
      for (int64_t k = 0; k < (last - first + kChunk - 1) / kChunk * kChunk; k += kStep) {
        const float scale = k < last - first ? weight_scale(scales[k / 32]) : 0.0f;
        for (int m = 0; m < M; ++m)
          store_step(scaled_x[m] + k, scaled(load_step(x + m * stride + k), scale));
      }
      x = scaled_x[0];
      stride = kSpan + kStep;
    }
    const bool whole_rows = M == 1 || shape.K <= kSumBlock;
    int64_t n = begin;
    if (Format != TANDEM_BF16 || !whole_rows)
      n = columns<M, kMany, Format>(shape, p, x, stride, first, last, begin, end, totals);
    columns<M, 1, Format>(shape, p, x, stride, first, last, n, end, totals);
  }
  for (int m = 0; m < M; ++m)
    for (int64_t n = begin; n < end; ++n) put(shape, p, m, n, totals[m][n % kScaleRows]);
}

// ---- several rows: weights are decoded once into a panel -----------------------------------

constexpr int kColumns = 4;  // sums of a tile of 6 rows, in 32 registers
constexpr int64_t kPitch = kSumBlock + kStep;

// A decoded block of kColumns rows of weights.
struct Panel {
  alignas(64) Item values[kColumns][kPitch];
};

// Row `column` of the weights, `size` elements from k0, into a row of the panel, in whole chunks.
template <int64_t Format>
TANDEM_INLINE void decode_row(const Shape &shape, const Product &p, int64_t column, int64_t k0,
                              int64_t size, Fetch &fetch, Item *out) {
  const int64_t scale_row = Format == TANDEM_FP8_BLOCK32 ? column / kScaleRows : column;
  const uint8_t *scales = p.scales + scale_row * shape.scale_columns() + k0 / kStep;
  const uint8_t *codes = p.codes + column * shape.row_bytes() + k0 / kChunk * kChunkBytes<Format>;
  RowScales row{};
  if (Format == TANDEM_MXFP4) row = row_scales(scales, size / 32);
  const auto chunk = [&](int64_t k, int64_t left) TANDEM_BODY {
    fetch.bytes(kChunkBytes<Format>);
    Step w[4];
    chunk_of<Format>(codes, row, k, left, w);
    for (int s = 0; s < 4; ++s) {
      if (Format == TANDEM_FP8_BLOCK32 && s * kStep < left)
        w[s] = scaled_fp8(w[s], block_scale(scales[k / kStep + s]));
      store_step(out + k + s * kStep, w[s]);
    }
  };
  int64_t k = 0;
  for (; k + kChunk <= size; k += kChunk) chunk(k, kChunk);
  if (k < size) chunk(k, size - k);
}

// R rows of x times the panel: adds to their sums. Lanes are taken by registers, so that the sums
// of a tile stay in them.
template <int R>
TANDEM_INLINE void tile(const Item *x, int64_t stride, const Panel &panel, int64_t size,
                        float (*totals)[kColumns]) {
  alignas(64) float lanes[R][kColumns][kLanes];
  for (int part = 0; part < kLanes / kRegister; ++part) {
    Register sums[R][kColumns] = {};
    for (int64_t k = 0; k < size; k += kStep) {
      Part w[kColumns];
      for (int c = 0; c < kColumns; ++c) w[c] = load_part_of_step(panel.values[c] + k, part);
      for (int r = 0; r < R; ++r) {
        const Part xs = load_part_of_step(x + r * stride + k, part);
        for (int c = 0; c < kColumns; ++c) sums[r][c] = w[c].dot(sums[r][c], xs);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < kColumns; ++c) store_register(lanes[r][c] + part * kRegister, sums[r][c]);
  }
  for (int r = 0; r < R; ++r) {
    Vec sums[kColumns];
    for (int c = 0; c < kColumns; ++c) sums[c] = load(lanes[r][c]);
    add_tree_sums<kColumns>(sums, totals[r]);
  }
}

// `count` rows of x, from x, times the panel.
TANDEM_INLINE void panel_rows(const Item *x, int64_t stride, int64_t count, const Panel &panel,
                              int64_t size, float (*totals)[kColumns]) {
  int64_t row = 0;
  const auto rows = [&](auto number) {
    constexpr int R = decltype(number)::value;
    tile<R>(x + row * stride, stride, panel, size, totals + row);
    row += R;
  };
  // Seven and eight are best as four and the rest.
  while (count - row >= 6 && count - row != 7 && count - row != 8)
    rows(std::integral_constant<int, 6>{});
  while (count - row >= 4) rows(std::integral_constant<int, 4>{});
  while (count - row >= 2) rows(std::integral_constant<int, 2>{});
  while (count - row >= 1) rows(std::integral_constant<int, 1>{});
}

// Columns [begin, end) of all rows of a product.
template <int64_t Format>
TANDEM_APART void several_rows(const Shape &shape, const Product &p, int64_t begin, int64_t end,
                               Panel &panel) {
  float totals[kRowBlock][kColumns];
  for (int64_t row = 0; row < p.rows; row += kRowBlock) {
    const int64_t count = p.rows - row < kRowBlock ? p.rows - row : kRowBlock;
    for (int64_t n = begin; n < end; n += kColumns) {
      const int width = static_cast<int>(end - n < kColumns ? end - n : kColumns);
      std::memset(totals, 0, static_cast<size_t>(count) * sizeof totals[0]);
      Fetch fetch{p.codes + (n + kColumns) * shape.row_bytes()};
      for (int64_t k0 = 0; k0 < shape.K; k0 += kSumBlock) {
        const int64_t size = shape.K - k0 < kSumBlock ? shape.K - k0 : kSumBlock;
        for (int c = 0; c < kColumns; ++c)  // columns that fill the panel up are computed in vain
          decode_row<Format>(shape, p, n + (c < width ? c : 0), k0, size, fetch, panel.values[c]);
        panel_rows(p.x + row * shape.stride() + k0, shape.stride(), count, panel,
                   (size + kChunk - 1) / kChunk * kChunk, totals);
      }
      for (int64_t r = 0; r < count; ++r)
        for (int c = 0; c < width; ++c) put(shape, p, row + r, n + c, totals[r][c]);
    }
  }
}

// ---- sharing work over threads ---------------------------------------------------------------

// Up to so many rows go through registers; more of them where their part of x stays in the nearest
// cache. Beyond, a panel is the faster way.
template <int64_t Format>
constexpr int kMostFewRows = Format == TANDEM_BF16 ? 8 : 6;

template <int M, int64_t Format>
TANDEM_INLINE void few_or_more_rows(const Shape &shape, const Product &p, int64_t begin,
                                    int64_t end) {
  if constexpr (M < kMostFewRows<Format>)
    if (p.rows > M) return few_or_more_rows<M + 1, Format>(shape, p, begin, end);
  few_rows<M, Format>(shape, p, begin, end);
}

template <int64_t Format>
TANDEM_INLINE void some_columns(const Shape &shape, const Product &p, int64_t begin, int64_t end,
                                Panel &panel) {
  if (p.rows > (shape.K > kSumBlock ? 4 : kMostFewRows<Format>))
    several_rows<Format>(shape, p, begin, end, panel);
  else
    few_or_more_rows<1, Format>(shape, p, begin, end);
}

}  // namespace tandem::TANDEM_ISA

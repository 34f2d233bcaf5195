// Matrix products where a register holds fewer than 16 lanes; the order of sums stands in
// products.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "operands_narrow.h"
#include "product.h"

namespace tandem::TANDEM_ISA {

constexpr int64_t kBlockGroups = kSumBlock / kStep;  // scales of a block of a row

// Sums that registers hold: rows of weights that meet one row of x at a time, the most rows of x
// that weights meet where they come from memory, and a tile of the others.
#if defined(__ARM_NEON)
constexpr int kTogether = 4, kMostDirect = 4, kTileColumns = 4, kMostRows = 6;
#elif defined(__AVX2__)
constexpr int kTogether = 4, kMostDirect = 4, kTileColumns = 3, kMostRows = 4;
#else
constexpr int kTogether = 2, kMostDirect = 2, kTileColumns = 2, kMostRows = 4;
#endif

// ---- few rows: weights go from memory through registers ------------------------------------

// Rows of activations from some element on, and how far they and their parts are from each other.
struct Rows {
  const Item *x;
  int64_t stride, part;

  TANDEM_INLINE const Item *at(int row, int64_t k, int part_number) const {
    return x + row * stride + part_number * part + k / kPartCount;
  }
};

// Adds a block of K, for R rows of weights and T rows of x, to their sums.
template <int R, int T, int64_t Format>
TANDEM_INLINE void block_sums(const Rows &x, const uint8_t *const *rows,
                              const float (*scales)[kBlockGroups], int64_t size, Fetch &fetch,
                              float (*totals)[T]) {
  constexpr bool kOwn = Format == TANDEM_MXFP4;  // elsewhere the rows of x have the scales
  Register sums[R][T][kPartCount] = {};
  const auto chunk = [&](int64_t k, int64_t left) TANDEM_BODY {
    fetch.bytes(R * kChunkBytes<Format>);
    unrolled<R>([&](auto r) TANDEM_BODY {
      const auto multiply = [&](auto step, auto part, const Register &odd, const Register &even)
                                TANDEM_BODY {
                                  unrolled<T>([&](auto t) TANDEM_BODY {
                                    const Item *other = x.at(t(), k + step() * kStep, part());
                                    Register &sum = sums[r()][t()][part()];
                                    sum = add_exact(sum, odd, load_register(other));
                                    sum = add_exact(sum, even, load_register(other + kRegister));
                                  });
                                };
      decode_chunk<Format>(rows[r()] + k / kChunk * kChunkBytes<Format>, left,
                           kOwn ? scales[r()] + k / kStep : scales[0], multiply);
    });
  };
  int64_t k = 0;
  for (; k + kChunk <= size; k += kChunk) chunk(k, kChunk);
  if (k < size) chunk(k, size - k);
  unrolled<R>([&](auto r) TANDEM_BODY {
    unrolled<T>([&](auto t) TANDEM_BODY { totals[r()][t()] += lanes_sum(sums[r()][t()]); });
  });
}

// Columns [begin, end) of T rows, R at a time, elements [first, last) of K; x from element
// `first`, already scaled where the format has blocks. Adds to their sums; returns where it
// stopped.
template <int R, int T, int64_t Format>
TANDEM_INLINE int64_t columns(const Shape &shape, const Product &p, const Rows &x, int64_t first,
                              int64_t last, int64_t begin, int64_t end, float (*totals)[T]) {
  float scales[R][kBlockGroups];
  for (int64_t g = 0; g < 4; ++g) scales[0][g] = kFp8Factor;
  int64_t n = begin;
  for (; n + R <= end; n += R) {
    const uint8_t *start = p.codes + n * shape.row_bytes();
    const int64_t bytes = R * shape.row_bytes();
    const bool near = R == 1 || bytes <= kNear;
    Fetch fetch{start + (R == 1 ? kNear : bytes) + first / kChunk * kChunkBytes<Format>, near};
    for (int64_t k0 = first; k0 < last; k0 += kSumBlock) {
      const int64_t size = last - k0 < kSumBlock ? last - k0 : kSumBlock;
      const uint8_t *rows[R];
      for (int r = 0; r < R; ++r) {
        rows[r] = start + r * shape.row_bytes() + k0 / kChunk * kChunkBytes<Format>;
        if (Format == TANDEM_MXFP4)
          spread_scales<Format>(p.scales + (n + r) * shape.scale_columns() + k0 / kStep,
                                size / kStep, scales[r]);
      }
      block_sums<R, T, Format>(Rows{x.at(0, k0 - first, 0), x.stride, x.part}, rows, scales, size,
                               fetch, totals + (n - begin));
    }
  }
  return n;
}

// `size` elements of rows times the scales of their groups, made up to whole chunks.
TANDEM_INLINE void scale_rows(const Rows &x, int count, const uint8_t *scales, int64_t size,
                              Item *out, int64_t out_part) {
  const int64_t padded = (size + kChunk - 1) / kChunk * kChunk;
  for (int i = 0; i < count * kPartCount; ++i, out += out_part)
    for (int64_t k = 0; k < padded; k += kStep) {
      const float scale = k < size ? weight_scale(scales[k / kStep]) : 0.0f;
      const Item *from = x.at(i / kPartCount, k, i % kPartCount);
      Item *to = out + k / kPartCount;
      store_register(to, scaled(load_register(from), scale));
      store_register(to + kRegister, scaled(load_register(from + kRegister), scale));
    }
}

// Columns [begin, end), at most 32 that share fp8 scales, of all T rows of a product.
template <int T, int64_t Format>
TANDEM_INLINE void few_rows(const Shape &shape, const Product &p, int64_t begin, int64_t end) {
  // Elements of K that all columns take before the next ones: of several rows of x as many as stay
  // in the nearest cache, of others so many that weights come in the order of memory.
  constexpr int64_t kSpan = T > 2 ? kSumBlock : 2 * kSumBlock;
  constexpr int64_t kSpanPart = kSpan / kPartCount + kLanes;
  constexpr int kMany = kTogether / T ? kTogether / T : 1;
  float totals[kScaleRows][T] = {};
  alignas(64) Item scaled_x[T * kPartCount * kSpanPart];
  for (int64_t first = 0; first < shape.K; first += kSpan) {
    const int64_t last = shape.K - first < kSpan ? shape.K : first + kSpan;
    Rows x{p.x + first / kPartCount, shape.stride(), shape.stride() / kPartCount};
    if (Format == TANDEM_FP8_BLOCK32) {
      const uint8_t *scales = p.scales + begin / kScaleRows * shape.scale_columns() + first / kStep;
      scale_rows(x, T, scales, last - first, scaled_x, kSpanPart);
      x = Rows{scaled_x, kPartCount * kSpanPart, kSpanPart};
    }
    // Short rows that are not decoded come fastest one after the other.
    int64_t n = begin;
    if (T > 1 || Format != TANDEM_BF16 || shape.K > kSumBlock)
      n = columns<kMany, T, Format>(shape, p, x, first, last, begin, end, totals);
    if (kMany > 1) columns<1, T, Format>(shape, p, x, first, last, n, end, totals + (n - begin));
  }
  for (int64_t n = begin; n < end; ++n)
    for (int t = 0; t < T; ++t) put(shape, p, t, n, totals[n - begin][t]);
}

// ---- several rows: weights are decoded once into a panel -----------------------------------

constexpr int kPanelColumns = 12;        // whole tiles
constexpr int kFewRows = 2 * kMostRows;  // for which a panel has one tile, in the nearest cache
constexpr int64_t kPartPitch = kSumBlock / kPartCount + kLanes;

// A decoded block of some rows of weights.
struct Panel {
  alignas(64) Item values[kPanelColumns][kPartCount][kPartPitch];
};

// Row `column` of the weights, `size` elements from k0, into a row of the panel, in whole chunks.
template <int64_t Format>
TANDEM_INLINE void decode_row(const Shape &shape, const Product &p, int64_t column, int64_t k0,
                              int64_t size, Item (*out)[kPartPitch]) {
  float scales[kBlockGroups];
  const int64_t scale_row = Format == TANDEM_FP8_BLOCK32 ? column / kScaleRows : column;
  const uint8_t *codes = p.codes + column * shape.row_bytes() + k0 / kChunk * kChunkBytes<Format>;
  if (Format != TANDEM_BF16)
    spread_scales<Format>(p.scales + scale_row * shape.scale_columns() + k0 / kStep,
                          (size + kStep - 1) / kStep, scales);
  const auto chunk = [&](int64_t k, int64_t left) TANDEM_BODY {
    decode_chunk<Format>(codes + k / kChunk * kChunkBytes<Format>, left, scales + k / kStep,
                         [&](auto step, auto part, const Register &odd, const Register &even)
                             TANDEM_BODY {
                               Item *place = out[part()] + (k + step() * kStep) / kPartCount;
                               store_register(place, odd);
                               store_register(place + kRegister, even);
                             });
  };
  int64_t k = 0;
  for (; k + kChunk <= size; k += kChunk) chunk(k, kChunk);
  if (k < size) chunk(k, size - k);
}

// Lanes of part `part` of R rows of x times kTileColumns rows of the panel from `column` on.
template <int R>
TANDEM_INLINE void tile(const Item *x, int64_t stride, const Panel &panel, int column, int part,
                        int64_t count, Register (*lanes)[kPanelColumns][kPartCount]) {
  Register sums[R][kTileColumns] = {};
  const Item *weights = panel.values[column][part];
  for (int64_t k = 0; k < count; k += kRegister) {
    Register w[kTileColumns];
    unrolled<kTileColumns>([&](auto c) TANDEM_BODY {
      w[c] = load_register(weights + c() * (kPartCount * kPartPitch) + k);
    });
    unrolled<R>([&](auto r) TANDEM_BODY {
      const Register xs = load_register(x + r() * stride + k);
      unrolled<kTileColumns>([&](auto c)
                                 TANDEM_BODY { sums[r][c] = add_exact(sums[r][c], w[c], xs); });
    });
  }
  unrolled<R>([&](auto r) TANDEM_BODY {
    unrolled<kTileColumns>([&](auto c) TANDEM_BODY { lanes[r][column + c()][part] = sums[r][c]; });
  });
}

// R rows of x times `columns` rows of the panel: adds to their sums. A part of the rows of x stays
// in the nearest cache while the panel passes by.
template <int R>
TANDEM_INLINE void tiles(const Shape &shape, const Item *x, const Panel &panel, int columns,
                         int64_t size, float (*totals)[kPanelColumns]) {
  Register lanes[R][kPanelColumns][kPartCount];
  const int64_t count = (size + kChunk - 1) / kChunk * kChunk / kPartCount;
  for (int part = 0; part < kPartCount; ++part)
    for (int c = 0; c < columns; c += kTileColumns)
      tile<R>(x + part * (shape.stride() / kPartCount), shape.stride(), panel, c, part, count,
              lanes);
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < columns; ++c) totals[r][c] += lanes_sum(lanes[r][c]);
}

// `count` rows of x, from x on, times `columns` rows of the panel.
TANDEM_INLINE void panel_rows(const Shape &shape, const Item *x, int64_t count, const Panel &panel,
                              int columns, int64_t size, float (*totals)[kPanelColumns]) {
  int64_t row = 0;
  const auto rows = [&](auto number) {
    while (count - row >= number()) {
      tiles<number()>(shape, x + row * shape.stride(), panel, columns, size, totals + row);
      row += number();
    }
  };
  rows(std::integral_constant<int, kMostRows>{});
  if (kMostRows > 4) rows(std::integral_constant<int, 4>{});
  rows(std::integral_constant<int, 2>{});
  rows(std::integral_constant<int, 1>{});
}

// Columns [begin, end) of all rows of a product.
template <int64_t Format>
TANDEM_INLINE void several_rows(const Shape &shape, const Product &p, int64_t begin, int64_t end,
                                Panel &panel) {
  float totals[kRowBlock][kPanelColumns];
  const int panel_columns = p.rows > kFewRows ? kPanelColumns : kTileColumns;
  for (int64_t row = 0; row < p.rows; row += kRowBlock) {
    const int64_t count = p.rows - row < kRowBlock ? p.rows - row : kRowBlock;
    for (int64_t n = begin; n < end; n += panel_columns) {
      const int width = static_cast<int>(end - n < panel_columns ? end - n : panel_columns);
      const int filled = (width + kTileColumns - 1) / kTileColumns * kTileColumns;
      std::memset(totals, 0, static_cast<size_t>(count) * sizeof totals[0]);
      for (int64_t k0 = 0; k0 < shape.K; k0 += kSumBlock) {
        const int64_t size = shape.K - k0 < kSumBlock ? shape.K - k0 : kSumBlock;
        for (int c = 0; c < filled; ++c)  // columns that fill a tile up are computed in vain
          decode_row<Format>(shape, p, n + (c < width ? c : 0), k0, size, panel.values[c]);
        panel_rows(shape, p.x + row * shape.stride() + k0 / kPartCount, count, panel, filled, size,
                   totals);
      }
      for (int64_t r = 0; r < count; ++r)
        for (int c = 0; c < width; ++c) put(shape, p, row + r, n + c, totals[r][c]);
    }
  }
}

template <int64_t Format>
TANDEM_INLINE void some_columns(const Shape &shape, const Product &p, int64_t begin, int64_t end,
                                Panel &panel) {
  bool done = false;
  unrolled<kMostDirect>([&](auto i) {
    constexpr int T = i() + 1;
    if (p.rows == T) few_rows<T, Format>(shape, p, begin, end);
    done |= p.rows == T;
  });
  if (!done) several_rows<Format>(shape, p, begin, end, panel);
}

}  // namespace tandem::TANDEM_ISA

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

// Sums that registers hold: of rows of weights for one row of x, and of a tile.
#if defined(__ARM_NEON)
constexpr int kTogether = 4, kTileColumns = 4, kMostRows = 6;
#elif defined(__AVX2__)
constexpr int kTogether = 4, kTileColumns = 2, kMostRows = 6;
#else
constexpr int kTogether = 2, kTileColumns = 2, kMostRows = 4;
#endif

// The lanes of all parts, added as `tree_sum` has it.
TANDEM_INLINE float lanes_sum(const Register *parts) {
  typedef float Quarter __attribute__((vector_size(4 * sizeof(float))));
  Quarter q;
  if constexpr (kPartCount == 2) {
    const Register half = parts[0] + parts[1];
    Quarter quarters[2];
    std::memcpy(quarters, &half, sizeof half);
    q = quarters[0] + quarters[1];
  } else {
    const Register half[2] = {parts[0] + parts[2], parts[1] + parts[3]};
    const Register sum = half[0] + half[1];
    std::memcpy(&q, &sum, sizeof q);
  }
  return (q[0] + q[2]) + (q[1] + q[3]);
}

// ---- one row: weights go from memory through registers -------------------------------------

// A row of activations from some element on, and how far its parts are from each other.
struct Row {
  const Item *x;
  int64_t part;

  TANDEM_INLINE const Item *at(int64_t k, int part_number) const {
    return x + part_number * part + k / kPartCount;
  }
};

// Adds a block of K, for R rows of weights, to their sums.
template <int R, int64_t Format>
TANDEM_INLINE void block_sums(const Row &x, const uint8_t *const *rows,
                              const float (*scales)[kBlockGroups], int64_t size, Fetch &fetch,
                              float *totals) {
  Register sums[R][kPartCount] = {};
  const auto chunk = [&](int64_t k, int64_t left) TANDEM_BODY {
    fetch.bytes(R * kChunkBytes<Format>);
    unrolled<R>([&](auto r) TANDEM_BODY {
      constexpr bool kOwn = Format == TANDEM_MXFP4;  // elsewhere the row has the scales
      decode_chunk<Format>(rows[r] + k / kChunk * kChunkBytes<Format>, left,
                           kOwn ? scales[r] + k / kStep : scales[0],
                           [&](auto step, auto part, const Register &odd, const Register &even)
                               TANDEM_BODY {
                                 const Item *other = x.at(k + step() * kStep, part());
                                 Register &sum = sums[r][part()];
                                 sum = add_exact(sum, odd, load_register(other));
                                 sum = add_exact(sum, even, load_register(other + kRegister));
                               });
    });
  };
  int64_t k = 0;
  for (; k + kChunk <= size; k += kChunk) chunk(k, kChunk);
  if (k < size) chunk(k, size - k);
  unrolled<R>([&](auto r) TANDEM_BODY { totals[r] += lanes_sum(sums[r]); });
}

// Columns [begin, end) of one row, R at a time, elements [first, last) of K; x from element
// `first`, already scaled where the format has blocks. Adds to their sums; returns where it
// stopped.
template <int R, int64_t Format>
TANDEM_INLINE int64_t columns(const Shape &shape, const Product &p, const Row &x, int64_t first,
                              int64_t last, int64_t begin, int64_t end, float *totals) {
  float scales[R][kBlockGroups];
  for (int64_t g = 0; g < 4; ++g) scales[0][g] = kFp8Factor;
  int64_t n = begin;
  for (; n + R <= end; n += R) {
    const uint8_t *start = p.codes + n * shape.row_bytes();
    Fetch fetch{start + R * shape.row_bytes()};
    for (int64_t k0 = first; k0 < last; k0 += kSumBlock) {
      const int64_t size = last - k0 < kSumBlock ? last - k0 : kSumBlock;
      const uint8_t *rows[R];
      for (int r = 0; r < R; ++r) {
        rows[r] = start + r * shape.row_bytes() + k0 / kChunk * kChunkBytes<Format>;
        if (Format == TANDEM_MXFP4)
          spread_scales<Format>(p.scales + (n + r) * shape.scale_columns() + k0 / kStep,
                                size / kStep, scales[r]);
      }
      block_sums<R, Format>(Row{x.at(k0 - first, 0), x.part}, rows, scales, size, fetch,
                            totals + (n - begin));
    }
  }
  return n;
}

// `size` elements of a row times the scales of their groups, made up to whole chunks.
TANDEM_INLINE void scale_row(const Row &x, const uint8_t *scales, int64_t size, Item *out,
                             int64_t out_part) {
  const int64_t padded = (size + kChunk - 1) / kChunk * kChunk;
  for (int part = 0; part < kPartCount; ++part)
    for (int64_t k = 0; k < padded; k += kStep) {
      const float scale = k < size ? weight_scale(scales[k / kStep]) : 0.0f;
      Item *to = out + part * out_part + k / kPartCount;
      for (int i = 0; i < kPartStep; i += kRegister)
        store_register(to + i, scaled(load_register(x.at(k, part) + i), scale));
    }
}

// Columns [begin, end), at most 32 that share fp8 scales, of the one row of a product.
template <int64_t Format>
TANDEM_INLINE void one_row(const Shape &shape, const Product &p, int64_t begin, int64_t end) {
  constexpr int64_t kSpan = 4 * kSumBlock;  // elements that are scaled at a time
  float totals[kScaleRows] = {};
  alignas(64) Item scaled_x[kSpan];
  for (int64_t first = 0; first < shape.K; first += kSpan) {
    const int64_t last = shape.K - first < kSpan ? shape.K : first + kSpan;
    Row x{p.x + first / kPartCount, shape.padded() / kPartCount};
    if (Format == TANDEM_FP8_BLOCK32) {
      const uint8_t *scales = p.scales + begin / kScaleRows * shape.scale_columns() + first / kStep;
      scale_row(x, scales, last - first, scaled_x, kSpan / kPartCount);
      x = Row{scaled_x, kSpan / kPartCount};
    }
    const int64_t n = columns<kTogether, Format>(shape, p, x, first, last, begin, end, totals);
    columns<1, Format>(shape, p, x, first, last, n, end, totals + (n - begin));
  }
  for (int64_t n = begin; n < end; ++n) put(shape, p, 0, n, totals[n - begin]);
}

// ---- several rows: weights are decoded once into a panel -----------------------------------

constexpr int kPanelColumns = 8;
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
      tile<R>(x + part * (shape.padded() / kPartCount), shape.stride(), panel, c, part, count,
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
  for (int64_t row = 0; row < p.rows; row += kRowBlock) {
    const int64_t count = p.rows - row < kRowBlock ? p.rows - row : kRowBlock;
    for (int64_t n = begin; n < end; n += kPanelColumns) {
      const int width = static_cast<int>(end - n < kPanelColumns ? end - n : kPanelColumns);
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
  if (p.rows > 1)
    several_rows<Format>(shape, p, begin, end, panel);
  else
    one_row<Format>(shape, p, begin, end);
}

}  // namespace tandem::TANDEM_ISA

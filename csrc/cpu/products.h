// Matrix products y [T, N] = x [T, K] times weights [N, K], the weights read as they are stored.
//
// The sum over K runs in blocks of 2048 elements, added in order. In a block every lane adds the
// products of its elements step by step (operands.h), and the lanes are added by tree_sum. Values
// have their scales before they are multiplied, and all products are exact; so the order alone
// decides the bits, and they are the same however rows are tiled.
#pragma once

#include <cstdint>

#include "parallel.h"
#include "product.h"
#if defined(__AVX512F__)
#include "products_wide.h"
#else
#include "products_narrow.h"
#endif

namespace tandem::TANDEM_ISA {

// Runs `count` products; product(i) gives one. Threads share pieces of 32 columns by what they
// cost.
template <typename Get>
TANDEM_INLINE void run_products(const Shape &shape, int64_t count, const Get &product) {
  const int64_t pieces = (shape.N + kScaleRows - 1) / kScaleRows;
  // A piece of several rows costs about what moving its weights costs, and a part of that for each.
  const auto cost = [&](int64_t rows) { return rows ? 3 + rows : 0; };
  int64_t all = 0;
  for (int64_t i = 0; i < count; ++i) all += pieces * cost(product(i).rows);
  parallel_for(all, kScaleRows * shape.row_bytes() / 4, [&](int64_t begin, int64_t end) {
    Panel panel;
    int64_t at = 0;
    for (int64_t i = 0; i < count && at < end; ++i) {
      const Product p = product(i);
      const int64_t each = cost(p.rows);
      // Pieces that begin in this share are done here.
      for (int64_t piece = 0; each && piece < pieces; ++piece, at += each) {
        if (at < begin || at >= end) continue;
        const int64_t n = piece * kScaleRows;
        const int64_t stop = n + kScaleRows < shape.N ? n + kScaleRows : shape.N;
        if (shape.format == TANDEM_BF16)
          some_columns<TANDEM_BF16>(shape, p, n, stop, panel);
        else if (shape.format == TANDEM_MXFP4)
          some_columns<TANDEM_MXFP4>(shape, p, n, stop, panel);
        else
          some_columns<TANDEM_FP8_BLOCK32>(shape, p, n, stop, panel);
      }
    }
  });
}

// Arranges T rows of activations, [T, columns] of which K from `first`, into Items at `room`.
TANDEM_INLINE void arrange_rows(const Shape &shape, int64_t x_format, const void *x,
                                const uint8_t *x_scales, int64_t T, int64_t columns, int64_t first,
                                Item *room) {
  parallel_for(T, 4 * shape.K, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t place = t * columns + first;
      const uint8_t *row =
          static_cast<const uint8_t *>(x) + place * (x_format == TANDEM_BF16 ? 2 : 1);
      arrange(x_format, row, x_scales ? x_scales + place / 32 : nullptr, shape.K,
              shape.format == TANDEM_MXFP4, shape.padded(), room + t * shape.stride());
    }
  });
}

TANDEM_INLINE int32_t check_shape(const Shape &shape, int64_t x_format, const uint8_t *x_scales) {
  const int64_t f = shape.format;
  if (f != TANDEM_BF16 && f != TANDEM_MXFP4 && f != TANDEM_FP8_BLOCK32) return TANDEM_BAD_VALUE;
  if (x_format != TANDEM_BF16 && x_format != TANDEM_MXFP8) return TANDEM_BAD_VALUE;
  if (shape.K < 1 || shape.N < 1) return TANDEM_BAD_SHAPE;
  const bool groups = f == TANDEM_MXFP4 || x_format == TANDEM_MXFP8;
  if (groups && shape.K % 32) return TANDEM_BAD_SHAPE;
  return x_format == TANDEM_MXFP8 && !x_scales ? TANDEM_NULL_POINTER : TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA

// What a matrix product gets and where its results go.
#pragma once

#include <cstdint>

#include "operands.h"

namespace tandem::TANDEM_ISA {

constexpr int64_t kSumBlock = 2048;  // elements of K
constexpr int64_t kRowBlock = 128;   // rows of x that share a decoded panel of weights
constexpr int64_t kScaleRows = 32;   // rows of an fp8 scale block

// One product; several of them share a call.
struct Product {
  const Item *x;         // arranged rows
  int64_t rows;          // of x and y
  const uint8_t *codes;  // weights [N, K]
  const uint8_t *scales;
  uint8_t *y;        // bf16 or f32
  int64_t y_stride;  // elements
};

// What the products of a call have in common.
struct Shape {
  int64_t format;  // of the weights
  int64_t K, N;
  bool wide;  // y is f32

  TANDEM_INLINE int64_t row_bytes() const {
    return format == TANDEM_BF16 ? 2 * K : format == TANDEM_MXFP4 ? K / 2 : K;
  }
  TANDEM_INLINE int64_t scale_columns() const { return (K + 31) / 32; }
  // Scale bytes of a weight.
  TANDEM_INLINE int64_t scale_count() const {
    return (format == TANDEM_MXFP4 ? N : (N + kScaleRows - 1) / kScaleRows) * scale_columns();
  }
  TANDEM_INLINE int64_t padded() const { return (K + kChunk - 1) / kChunk * kChunk; }
  // Items between arranged rows; so that rows do not all fall into the same sets of a cache.
  TANDEM_INLINE int64_t stride() const { return padded() + kStep; }
};

TANDEM_INLINE void put(const Shape &shape, const Product &p, int64_t row, int64_t column,
                       float sum) {
  const int64_t place = row * p.y_stride + column;
  if (shape.wide)
    reinterpret_cast<float *>(p.y)[place] = sum;
  else
    reinterpret_cast<uint16_t *>(p.y)[place] = narrow(sum);
}

constexpr int64_t kNear = 4096;  // bytes that may be fetched ahead into the first-level cache

// Fetches what comes after the rows that are worked on, in the order of memory. Rows are short and
// several are taken at a time, which the processor's own fetching does not follow.
struct Fetch {
  const uint8_t *at;
  // What is worked on and what comes next fit into the first-level cache. It is read once a step,
  // and what else the caches hold, the host's own data, is worth more: a hint says so.
  bool near = false;

  TANDEM_INLINE void bytes(int64_t count) {
    if (near)
      for (int64_t b = 0; b < count; b += 64) __builtin_prefetch(at + b, 0, 0);
    else
      for (int64_t b = 0; b < count; b += 64) __builtin_prefetch(at + b, 0, 2);
    at += count;
  }
};

}  // namespace tandem::TANDEM_ISA

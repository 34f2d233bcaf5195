// What the files of this folder offer one another: plain C++, no CUTLASS, no device code.
#pragma once

#include <cstdint>

#include "../include/tandem_cuda.h"

struct CUstream_st;

namespace tandem {

using Stream = CUstream_st *;

struct Workspace {
  uint8_t *data;
  int64_t bytes;
};

// A dense product, or a batch of them: out[l] [tokens, outputs] = x[l] [tokens, depth] . w[l]
// [outputs, depth]^T. Strides count elements; those of scales count tiles of 512 bytes (128 rows x
// 4 groups).
struct Batch {
  const void *x, *w;
  const uint8_t *x_scale, *w_scale;  // null for bf16
  void *out;
  int32_t tokens, outputs, depth, count;
  int64_t x_row, x_batch, w_row, w_batch, out_row, out_batch;
  int32_t x_scale_band, x_scale_batch, w_scale_band, w_scale_batch;
};

// A product per group of rows.
struct Groups {
  const void *x, *w;
  const uint8_t *x_scale, *w_scale;
  const int32_t *ends;
  void *out;
  int32_t rows, groups, outputs, depth;
};

// Tensor-core products, one a file.
struct BatchKernel {
  int32_t (*run)(const Batch &, Stream);
  int32_t shared_bytes;  // of a block
};
struct GroupsKernel {
  int32_t (*run)(const Groups &, Workspace, int32_t multiprocessors, Stream);
  int64_t (*workspace)(int32_t multiprocessors);  // bytes beside the problem table
  int32_t shared_bytes;
};
extern const BatchKernel mx_small_bf16, mx_small_f32, mx_large_bf16, mx_large_f32;
extern const BatchKernel bf16_small, bf16_large;
extern const GroupsKernel grouped_small, grouped_large;

// Bytes of the problem table of a grouped product.
int64_t group_table_bytes(int32_t rows, int32_t groups, int32_t depth);

}  // namespace tandem

// The product that takes every shape and pair of formats, an output a thread, its terms added in
// order. Its arithmetic compiles for the host too, where the tests run it.
#pragma once

#include "kernels.h"
#include "layout.h"

namespace tandem {

// A matrix of any format; for scaled formats `tiles` is what a row band of scales holds.
struct Operand {
  const void *data;
  const uint8_t *scale;
  int32_t format;
  int64_t depth;  // elements of a stored row
  int32_t tiles;
};

TANDEM_BOTH float element(const Operand &m, int64_t row, int64_t column) {
  int64_t index = row * m.depth + column;
  switch (m.format) {
    case TANDEM_BF16:
      return bf16(static_cast<const uint16_t *>(m.data)[index]);
    case TANDEM_F32:
      return static_cast<const float *>(m.data)[index];
    default:
      break;
  }
  float scale = ue8m0(m.scale[scale_byte(row, static_cast<int32_t>(column / kGroup), m.tiles)]);
  const uint8_t *codes = static_cast<const uint8_t *>(m.data);
  if (m.format == TANDEM_MXFP8) return e4m3(codes[index]) * scale;
  return e2m1(codes[index / 2] >> (index & 1) * 4 & 15) * scale;
}

struct GenericProduct {
  Operand x, w;
  int64_t tokens, outputs, depth;
  int64_t batches;  // of weights: groups of channels, or experts
  const int32_t
      *ends;  // null: batch b reads channels b * depth .. of x and writes columns b * outputs ..
  int64_t w_batch, w_scale_batch;  // bytes between weights
  void *out;
  int32_t out_format;
};

// Output `column` of `row`, of all that the product writes in a row.
TANDEM_BOTH float generic_value(const GenericProduct &p, int64_t row, int64_t column) {
  int64_t batch =
      p.ends ? group_of_row(p.ends, static_cast<int32_t>(p.batches), static_cast<int32_t>(row))
             : column / p.outputs;
  if (batch == p.batches) return 0.0f;
  Operand w = p.w;
  w.data = static_cast<const uint8_t *>(w.data) + batch * p.w_batch;
  if (w.scale) w.scale += batch * p.w_scale_batch;
  int64_t from = p.ends ? 0 : batch * p.depth, output = p.ends ? column : column % p.outputs;
  float sum = 0.0f;
  for (int64_t k = 0; k < p.depth; ++k) sum += element(p.x, row, from + k) * element(w, output, k);
  return sum;
}

TANDEM_BOTH void generic_output(const GenericProduct &p, int64_t row, int64_t column,
                                int64_t width) {
  float value = generic_value(p, row, column);
  int64_t place = row * width + column;
  if (p.out_format == TANDEM_F32)
    static_cast<float *>(p.out)[place] = value;
  else
    static_cast<uint16_t *>(p.out)[place] = to_bf16(value);
}

TANDEM_BOTH int64_t generic_width(const GenericProduct &p) {
  return p.ends ? p.outputs : p.outputs * p.batches;
}

int32_t run_generic(const GenericProduct &p, Stream stream);

// out = parts[0] + parts[1] + ..., each [tokens, outputs] f32, added in order and rounded once.
int32_t add_parts(const float *parts, int32_t count, int64_t values, void *out, int32_t out_format,
                  Stream stream);

}  // namespace tandem

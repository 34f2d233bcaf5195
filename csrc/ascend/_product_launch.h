// Products of dense weights: tiles of all groups, dealt to the cube cores in turn.
#pragma once

#include "_product.h"

namespace tandem {

constexpr uint32_t kPanel = 8;  // tiles of outputs

// What a launch of a dense product is told: x [rows, groups, depth], weights [groups, outputs,
// depth].
struct DenseShape {
  int64_t rows, groups, outputs, depth;
  int64_t pairs() const { return (depth + 63) / 64; }
};

template <class T, class Out, bool kScaled>
__aicore__ inline void dense_tiles(Gm<T> x, Gm<half> x_scale, Gm<T> w, Gm<half> w_scale, Gm<Out> y,
                                   uint32_t rows, uint32_t groups, uint32_t outputs, uint32_t depth,
                                   const Tile &tile, uint32_t l1_bytes, uint32_t l0_bytes,
                                   uint32_t l0c_bytes) {
  begin_products();
  CubeProduct<T, T, Out, kScaled, false> product(tile, l1_bytes, l0_bytes, l0c_bytes);
  product.begin();
  const uint32_t row_tiles = (rows + tile.rows - 1) / tile.rows;
  const uint32_t output_tiles = (outputs + tile.outputs - 1) / tile.outputs;
  const uint32_t tiles = groups * output_tiles * row_tiles, pairs = (depth + kPairOf - 1) / kPairOf;
  // In panels of a few tiles of outputs, through which all rows go: cores that run together share
  // rows and weights in L2.
  for (uint32_t i = AscendC::GetBlockIdx(); i < tiles; i += AscendC::GetBlockNum()) {
    const uint32_t of_group = i % (output_tiles * row_tiles),
                   panel = of_group / (kPanel * row_tiles);
    const uint32_t at = of_group % (kPanel * row_tiles);
    const uint32_t left = output_tiles - panel * kPanel, width = left < kPanel ? left : kPanel;
    const uint64_t row = at / width * tile.rows;
    const uint64_t output = uint64_t(panel * kPanel + at % width) * tile.outputs;
    const uint64_t group = i / (output_tiles * row_tiles);
    TileTask<T, T, Out> task;
    task.x = x + (row * groups + group) * depth;
    task.w = w + (group * outputs + output) * depth;
    if constexpr (kScaled) {
      task.x_scale = x_scale + (row * groups + group) * pairs;
      task.w_scale = w_scale + (group * outputs + output) * pairs;
    }
    task.y = y + (row * groups + group) * outputs + output;
    task.x_stride = uint64_t(groups) * depth;
    task.w_stride = depth;
    task.x_scale_stride = uint64_t(groups) * pairs;
    task.w_scale_stride = pairs;
    task.y_stride = uint64_t(groups) * outputs;
    task.rows = rows - row < tile.rows ? rows - row : tile.rows;
    task.outputs = outputs - output < tile.outputs ? outputs - output : tile.outputs;
    task.depth = depth;
    product.run(task);
  }
  product.end();
  AscendC::PipeBarrier<PIPE_ALL>();
}

// What the copies can address, and what counters of 32 bits hold.
inline int32_t check_dense(const DenseShape &shape) {
  if (shape.rows < 0 || shape.groups < 1 || shape.outputs < 1 || shape.depth < 1)
    return TANDEM_BAD_VALUE;
  if (shape.groups * shape.depth > 65535 || shape.rows > INT32_MAX / 2 ||
      shape.groups * shape.outputs > INT32_MAX / 2)
    return TANDEM_TOO_LARGE;
  return TANDEM_OK;
}

inline int64_t dense_blocks(const tandem_ascend_device &device, const DenseShape &shape,
                            const Tile &tile) {
  const int64_t tiles =
      shape.groups * ceil_div(shape.rows, tile.rows) * ceil_div(shape.outputs, tile.outputs);
  return tiles < device.cube_cores ? tiles : device.cube_cores;
}

}  // namespace tandem

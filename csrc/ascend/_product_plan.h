// How products are cut into tiles. Plain C++, for the host.
//
// Two rules keep a row's bits independent of the batch: a sum is one accumulator of one core, and K
// goes into it in steps of kStepBytes whatever the tile.
#pragma once

#include <cstdint>

#include "../include/tandem_ascend.h"

namespace tandem {

// Bytes of a row that one Mmad multiplies: 128 fp8, 64 bf16, 32 f32.
constexpr uint32_t kStepBytes = 128;

// A tile: rows of x, rows of weights (outputs), and the bytes of K that L1 holds of both at a time.
struct Tile {
  uint32_t rows;
  uint32_t outputs;
  uint32_t chunk;
};

struct TileClass {
  const char *name;
  uint32_t rows, outputs;
  const char *use;
};

// 950PR: 1.6 TB/s over 32 cubes are 30 bytes a cycle and cube; a cube multiplies 8192 pairs of fp8.
constexpr TileClass kTileClasses[] = {
    {"few_rows", 16, 128,
     "up to 16 rows: below 270 multiplications a byte the weights bound the time, and tiles of one "
     "fractal of rows leave the most work items to stream them"},
    {"some_rows", 64, 128,
     "up to 64 rows, and more where wide tiles would leave cubes idle: the weights still bound the "
     "time, each is read once for all rows"},
    {"many_rows", 128, 256,
     "bound by the cube: 384 bytes from L2 for 4 cycles of 8192 multiplications, and two results "
     "of f32 fill L0C, so that Fixpipe and Mmad overlap"},
};

constexpr int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
constexpr int64_t round_up(int64_t x, int64_t to) { return ceil_div(x, to) * to; }

// The tile for `rows` rows of each of `matrices` weights. `fed`: vector cores bring the weights, so
// that UB bounds the chunk too.
inline Tile choose_tile(const tandem_ascend_device &device, int64_t rows, int64_t outputs,
                        int64_t matrices, bool fed) {
  const auto tiles = [&](uint32_t tile_rows, uint32_t tile_outputs) {
    return matrices * ceil_div(rows, tile_rows) * ceil_div(outputs, tile_outputs);
  };
  const TileClass *chosen = &kTileClasses[rows <= 16 ? 0 : 1];
  if (rows > 64 && tiles(128, 256) >= device.cube_cores) chosen = &kTileClasses[2];
  Tile tile{chosen->rows, chosen->outputs, 0};
  // Few outputs: narrower tiles, as long as some cubes would have none.
  while (tile.outputs > 16 && tiles(tile.rows, tile.outputs) < 2 * device.cube_cores)
    tile.outputs /= 2;
  // Two buffers of both operands and their scales, one byte to 32.
  const int64_t lines = tile.rows + tile.outputs;
  int64_t chunk = device.l1_bytes / (2 * lines * 33) * 32;
  // Two buffers of codes as they come, 16 bytes, and two widened, 32 bytes, for each half of a
  // chunk.
  if (fed)
    chunk = chunk < device.ub_bytes / (96 * int64_t(tile.outputs)) * 64
                ? chunk
                : device.ub_bytes / (96 * int64_t(tile.outputs)) * 64;
  tile.chunk = static_cast<uint32_t>(chunk < 1024 ? chunk / kStepBytes * kStepBytes : 1024);
  return tile;
}

// Whether the tile fits: L0A and L0B hold two steps, L0C two results.
inline bool fits(const tandem_ascend_device &device, const Tile &tile) {
  return tile.chunk >= kStepBytes && 2 * int64_t(tile.rows) * kStepBytes <= device.l0a_bytes &&
         2 * int64_t(tile.outputs) * kStepBytes <= device.l0b_bytes &&
         2 * int64_t(tile.rows) * tile.outputs * 4 <= device.l0c_bytes;
}

}  // namespace tandem

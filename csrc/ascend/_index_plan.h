// How scores of index keys are cut into tasks, and where things lie in the memories of a block.
//
// A task is a tile of rows and a span of keys. Keys go through in chunks of kKeys, a half to each
// vector core: it brings them to L1, and adds up the heads of their products with the queries.
#pragma once

#include "_product.h"
#include "_rows.h"

namespace tandem {

constexpr uint32_t kHalfKeys = 2 * rows::kStep, kKeys = 2 * kHalfKeys;
constexpr uint32_t kMostTileRows = 4, kMostSpanChunks = 16;

// Flags between the cores, those of chunks for each of two buffers.
constexpr uint16_t kKeysReady = 0, kKeysFree = 2, kScoresReady = 4, kScoresFree = 6,
                   kQueriesReady = 8, kQueriesFree = 9;

// Lines of mxfp4: keys, or queries of one head. A column is 32 bytes of codes, or a pair of scales.
struct LineShape {
  uint32_t dim;
  TANDEM_SHARED constexpr uint32_t code_bytes() const { return dim / 2; }
  TANDEM_SHARED constexpr uint32_t scale_bytes() const { return dim / 32; }
  TANDEM_SHARED constexpr uint32_t columns() const { return (dim + 63) / 64; }
  TANDEM_SHARED constexpr uint32_t codes_room(uint32_t lines) const {
    return lines * columns() * kBlockBytes;
  }
  TANDEM_SHARED constexpr uint32_t scales_room(uint32_t lines) const {
    return lines * columns() * 2;
  }
  TANDEM_SHARED constexpr uint32_t room(uint32_t lines) const {
    return codes_room(lines) + scales_room(lines);
  }
};

// What a launch is told, by value. Of a list of entries to each row a task has one row.
struct IndexShape {
  uint32_t rows, heads, dim, width;
  uint32_t columns, block_entries;  // of the block table
  uint32_t tile_rows, span, blocks, l0_bytes, l0c_bytes;

  TANDEM_SHARED constexpr LineShape lines() const { return {dim}; }
  TANDEM_SHARED constexpr uint32_t most_lines() const { return tile_rows * heads; }
};

// L1: two chunks of keys, then the queries.
struct L1Plan {
  LineShape lines;
  TANDEM_SHARED constexpr uint32_t keys(uint32_t buffer) const {
    return buffer * lines.room(kKeys);
  }
  TANDEM_SHARED constexpr uint32_t queries() const { return 2 * lines.room(kKeys); }
  constexpr uint32_t total(uint32_t most_lines) const {
    return queries() + lines.room((most_lines + 31) / 32 * 32);
  }
};

// UB of a vector core: two buffers each of scores, results and entries, the weights of the heads as
// they come and as f32, and two buffers of lines on their way.
struct UbLayout {
  uint32_t scores, results, entries, narrow, weights, lines, total;

  TANDEM_SHARED constexpr UbLayout(const LineShape &shape, uint32_t most_lines, uint32_t tile_rows)
      : scores(0),
        results(2 * 4 * most_lines * kHalfKeys),
        entries(results + 2 * 2 * tile_rows * kHalfKeys),
        narrow(entries + 2 * 4 * kHalfKeys),
        weights(narrow + 2 * rows::whole_steps(most_lines)),
        lines(weights + 4 * rows::whole_steps(most_lines)),
        total(lines + 2 * lines_room(shape)) {}

  // Codes, scales a block to a line, and scales as fractals.
  TANDEM_SHARED static constexpr uint32_t lines_room(const LineShape &shape) {
    return shape.codes_room(kHalfKeys) + kHalfKeys * kBlockBytes + shape.scales_room(kHalfKeys);
  }
};

// Rows of one request and the span of their keys [begin, end), of which the first `seen` are seen
// by any of them. What is not is scored where a chunk has both.
struct RowGroup {
  uint32_t first, count, begin, end, seen;
  __aicore__ inline uint32_t span() const { return end - begin; }
};

// Lines of a chunk that a vector core brings: whole fractals.
__aicore__ inline uint32_t half_lines(uint32_t count) {
  return align_to(count, 2 * kFractalRows) / 2;
}
__aicore__ inline uint32_t chunk_keys(uint32_t count, uint32_t chunk) {
  const uint32_t left = count - chunk * kKeys;
  return left < kKeys ? left : kKeys;
}
__aicore__ inline uint32_t chunks_of_keys(uint32_t count) { return (count + kKeys - 1) / kKeys; }

inline bool fits(const tandem_ascend_device &device, const LineShape &shape, uint32_t most_lines,
                 uint32_t tile_rows) {
  const int64_t lines = round_up(most_lines, kFractalRows);
  return rows::fits(&device, UbLayout(shape, most_lines, tile_rows).total) &&
         int64_t(L1Plan{shape}.total(most_lines)) <= device.l1_bytes &&
         lines * shape.columns() * kBlockBytes <= device.l0a_bytes &&
         int64_t(2) * shape.codes_room(kKeys) <= device.l0b_bytes &&
         2 * 4 * lines * kKeys <= device.l0c_bytes;
}

// Fill in the tiles, of at most so many rows: neither rows nor keys are cut so coarsely that cubes
// would be idle.
inline int32_t choose_tiles(const tandem_ascend_device &device, uint32_t most_rows,
                            IndexShape &shape) {
  if (shape.dim < 32 || shape.dim % 32 != 0 || shape.heads < 1) return TANDEM_BAD_VALUE;
  if (shape.dim / 32 > kBlockBytes || shape.heads > 4095) return TANDEM_TOO_LARGE;
  const int64_t chunks = ceil_div(shape.width, kKeys);
  uint32_t tile = most_rows;
  while (tile > 0 && !fits(device, shape.lines(), tile * shape.heads, tile)) tile /= 2;
  if (tile == 0) return TANDEM_TOO_LARGE;
  while (tile > 1 && ceil_div(shape.rows, tile) * chunks < 2 * device.cube_cores) tile /= 2;
  const int64_t tiles = ceil_div(shape.rows, tile), each = tiles * chunks / (8 * device.cube_cores);
  const int64_t in_span = each < 1 ? 1 : each < kMostSpanChunks ? each : kMostSpanChunks;
  const int64_t tasks = tiles * ceil_div(chunks, in_span);
  if (tasks > INT32_MAX / 2) return TANDEM_TOO_LARGE;
  shape.tile_rows = tile;
  shape.span = uint32_t(in_span * kKeys);
  shape.blocks = uint32_t(tasks < device.cube_cores ? tasks : device.cube_cores);
  shape.l0_bytes = uint32_t(device.l0b_bytes);
  shape.l0c_bytes = uint32_t(device.l0c_bytes);
  return TANDEM_OK;
}

}  // namespace tandem

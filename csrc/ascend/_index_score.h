// The kernel of both forms of index scores: tasks, cut into rows of one request, for the cube core
// and its vector cores alike.
#pragma once

#include "_index_cube.h"
#include "_index_vector.h"

namespace tandem {

struct IndexArrays {
  Gm<uint8_t> codes, scales;  // of the queries
  Gm<bfloat16_t> weights;
  Gm<uint8_t> cache;
  Gm<int32_t> table, row_slot;
  Gm<int32_t> seen;  // visible entries of each row, or the lists of entries
  Gm<bfloat16_t> out;
};

// f(group) for what a block does. Blocks that run together take tiles of rows with the same span of
// keys, which may be the same keys.
template <bool listed, class F>
__aicore__ inline void each_group(const IndexShape &s, const IndexArrays &a, uint32_t block, F f) {
  const uint32_t tiles = (s.rows + s.tile_rows - 1) / s.tile_rows;
  const uint32_t spans = (s.width + s.span - 1) / s.span;
  for (uint32_t i = block; i < tiles * spans; i += s.blocks) {
    const uint32_t begin = i / tiles * s.span;
    const uint32_t end = s.width - begin < s.span ? s.width : begin + s.span;
    uint32_t row = i % tiles * s.tile_rows;
    const uint32_t last = s.rows - row < s.tile_rows ? s.rows : row + s.tile_rows;
    while (row < last) {
      RowGroup group{row, 0, begin, end, listed ? end - begin : 0};
      const int32_t request = a.row_slot[row];
      for (; row < last && a.row_slot[row] == request; ++row) {
        ++group.count;
        if constexpr (!listed) {
          const int32_t sees = a.seen[row] < int32_t(end) ? int32_t(a.seen[row]) : int32_t(end);
          if (sees > int32_t(begin + group.seen)) group.seen = uint32_t(sees) - begin;
        }
      }
      f(group);
    }
  }
}

// What a group is to a cube core, and to a vector core.
struct CubeGroups {
  IndexCube &cube;
  uint32_t heads;

  __aicore__ inline void operator()(const RowGroup &group) const {
    cube.run(group.count * heads, group);
  }
};
template <bool listed>
struct VectorGroups {
  IndexVector &vector;
  const IndexShape &s;
  const IndexArrays &a;

  __aicore__ inline void operator()(const RowGroup &group) const {
    const uint64_t code_bytes = s.lines().code_bytes(), scale_bytes = s.lines().scale_bytes();
    const uint64_t line = uint64_t(group.first) * s.heads;
    const Lines queries{a.codes + line * code_bytes, a.scales + line * scale_bytes, code_bytes,
                        scale_bytes};
    const BlockRow blocks = block_row(s, a.table, a.row_slot[group.first]);
    if constexpr (listed) {
      const ListedKeys keys{blocks, a.seen + (int64_t(group.first) * s.width + group.begin)};
      vector.run(group, queries, a.weights + line, a.cache, keys, a.seen, a.out);
    } else {
      const PagedKeys keys{blocks, group.begin, group.seen};
      vector.run(group, queries, a.weights + line, a.cache, keys, a.seen + group.first, a.out);
    }
  }
};

template <bool listed>
__aicore__ inline void score_on_cube(const IndexShape &s, const IndexArrays &a) {
  begin_products();
  IndexCube cube(s);
  cube.begin();
  each_group<listed>(s, a, uint32_t(AscendC::GetBlockIdx()), CubeGroups{cube, s.heads});
  cube.end();
}

template <bool listed>
__aicore__ inline void score_on_vector(const IndexShape &s, const IndexArrays &a) {
  AscendC::InitSocState();
  rows::keep_infinity_and_nan();
  IndexVector vector(s);
  vector.begin();
  each_group<listed>(s, a, uint32_t(AscendC::GetBlockIdx()) / 2,
                     VectorGroups<listed>{vector, s, a});
  vector.end();
}

template <bool listed>
__aicore__ inline void score_keys(const IndexShape &s, const IndexArrays &a) {
  if ASCEND_IS_AIC {
    score_on_cube<listed>(s, a);
  }
  if ASCEND_IS_AIV {
    score_on_vector<listed>(s, a);
  }
  AscendC::PipeBarrier<PIPE_ALL>();
}

// Fill in the shape of a launch, of tiles of at most so many rows.
inline int32_t plan_scores(const tandem_ascend_device &device, uint32_t most_rows, int64_t rows,
                           int64_t width, int32_t heads, int32_t dim, int32_t columns,
                           int32_t block_entries, IndexShape &shape) {
  if (rows < 0 || width < 0 || heads < 1 || dim < 1 || columns < 1 || block_entries < 1)
    return TANDEM_BAD_VALUE;
  if (rows > INT32_MAX / 2 || width > INT32_MAX / 2) return TANDEM_TOO_LARGE;
  shape = {};
  shape.rows = uint32_t(rows);
  shape.heads = uint32_t(heads);
  shape.dim = uint32_t(dim);
  shape.width = uint32_t(width);
  shape.columns = uint32_t(columns);
  shape.block_entries = uint32_t(block_entries);
  return choose_tiles(device, most_rows, shape);
}

}  // namespace tandem

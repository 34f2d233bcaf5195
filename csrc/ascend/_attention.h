// Attention over cache entries as a kernel: a block, a cube core with its vector cores, takes a
// row, and of many heads a part. Of few rows it takes one chunk of entries only, so that more cores
// have work, and a second kernel merges what they leave in memory.
#pragma once

#include "_attention_merge.h"

namespace tandem {

// What the kernels are told but pointers.
struct AttentionShape {
  uint32_t rows, heads, dim, part, blocks, l0_bytes;
  uint32_t window_count, main_count;
  int32_t window_format, main_format;
  float scale;
  uint32_t split;  // whether a task has one chunk
};

// The caches and, for each row, their slots.
struct Caches {
  Gm<uint8_t> window;
  Gm<int32_t> window_slots;
  Gm<uint8_t> main;
  Gm<int32_t> main_slots;

  __aicore__ inline TwoLists of(const AttentionShape &s, uint32_t row) const {
    TwoLists lists{
        {window, window_slots + int64_t(row) * s.window_count, s.window_count, s.window_format},
        {main, main_slots, s.main_count, s.main_format}};
    if (s.main_count > 0) lists.main.slots = main_slots + int64_t(row) * s.main_count;
    return lists;
  }
};

// f(task) for the tasks of a block.
template <class F>
__aicore__ inline void each_task(const AttentionShape &s, uint32_t chunks, uint32_t block, F f) {
  const uint32_t parts = (s.heads + s.part - 1) / s.part, spans = s.split ? chunks : 1;
  for (uint32_t i = block; i < s.rows * parts * spans; i += s.blocks) {
    const uint32_t first = i / spans % parts * s.part, span = i % spans;
    const Heads heads{s.heads - first < s.part ? s.heads - first : s.part};
    f(Task{i / spans / parts, first, heads, span, s.split ? span + 1 : chunks});
  }
}

TANDEM_SHARED constexpr uint32_t half_of(uint32_t part) { return (part + 1) / 2; }

// What a task is to a cube core, and to a vector core.
struct CubeTasks {
  AttentionCube &cube;
  const AttentionShape &s;
  Gm<bfloat16_t> q;

  __aicore__ inline void operator()(const Task &task) const {
    cube.run(q + (int64_t(task.row) * s.heads + task.first) * s.dim, task.heads,
             task.end - task.start);
  }
};
template <class Vector>
struct VectorTasks {
  Vector &vector;
  const AttentionShape &s;
  const Caches &caches;
  const Partial &left;
  Gm<bfloat16_t> q;
  Gm<float> sink;

  __aicore__ inline void operator()(const Task &task) const {
    vector.run(q, caches.of(s, task.row), task, sink, s.scale, left);
  }
};

template <class Ends>
__aicore__ inline void attend(Gm<bfloat16_t> q, const Caches &caches, Gm<float> sink,
                              Gm<float> partial, const AttentionShape &s, const Ends &ends) {
  using Vector = AttentionVector<Ends>;
  const uint32_t chunks = caches.of(s, 0).chunks();
  if ASCEND_IS_AIC {
    begin_products();
    AttentionCube cube(s.dim, s.part, s.l0_bytes, Vector::plan(half_of(s.part), s.dim),
                       Ends::kBringsQueries);
    cube.begin();
    each_task(s, chunks, uint32_t(AscendC::GetBlockIdx()), CubeTasks{cube, s, q});
    cube.end();
  }
  if ASCEND_IS_AIV {
    AscendC::InitSocState();
    rows::keep_infinity_and_nan();
    const Partial left{partial, s.rows, chunks, s.heads, s.dim};
    Vector vector(s.dim, half_of(s.part), ends);
    vector.begin();
    each_task(s, chunks, uint32_t(AscendC::GetBlockIdx()) / 2,
              VectorTasks<Vector>{vector, s, caches, left, q, sink});
    vector.end();
  }
  AscendC::PipeBarrier<PIPE_ALL>();
}

template <class Ends>
bool fits_heads(const tandem_ascend_device &device, uint32_t part, uint32_t dim) {
  const int64_t lines = round_up(part, 16);
  return rows::fits(&device, AttentionVector<Ends>::room(half_of(part), dim)) &&
         AttentionCube::queries_base(dim, part) + 2 * lines * dim <= device.l1_bytes &&
         4 * lines * (2 * kChunk + dim) <= device.l0c_bytes;
}

// Sizes as they are given.
struct AttentionSizes {
  int64_t rows;
  int32_t heads, dim, window_count, main_count, window_format, main_format;

  bool good() const {
    return rows >= 0 && heads >= 1 && window_count >= 0 && main_count >= 0 && dim % 16 == 0 &&
           codec::whole_groups(dim, window_format) &&
           (main_count == 0 || codec::whole_groups(dim, main_format));
  }
  int64_t chunks() const { return ceil_div(window_count, kChunk) + ceil_div(main_count, kChunk); }
};

// Launches: blocks, how many heads a task has, and how chunks are merged if they are split.
struct Dealt {
  int32_t status;
  uint32_t part, blocks;
  MergeTile tile;
  int64_t merge_blocks;
};

// As many parts as there are vector cores, of all chunks if these fit.
template <class Ends>
MergeTile merge_tile(const tandem_ascend_device &device, const AttentionSizes &sizes) {
  const int64_t all = sizes.rows * sizes.heads, dim = sizes.dim;
  int64_t heads = ceil_div(all, device.vector_cores);
  heads = heads < sizes.heads ? heads : sizes.heads;
  heads = heads < kLanes ? heads : kLanes;
  const auto fit = [&](int64_t count) {
    const int64_t left = device.ub_bytes - rows::kSystemUb -
                         ChunkMerger<Ends>::room({uint32_t(count), 0}, uint32_t(dim));
    return left < 0 ? 0 : left / MergeTile::bytes(uint32_t(count), uint32_t(dim));
  };
  while (heads > 1 && fit(heads) == 0) heads /= 2;
  const int64_t chunks = fit(heads) < 2000 ? fit(heads) : 2000;  // lines of a transfer: twice that
  return {uint32_t(heads), uint32_t(chunks < sizes.chunks() ? chunks : sizes.chunks())};
}

template <class Ends>
Dealt deal(const tandem_ascend_device &device, const AttentionSizes &sizes, bool split) {
  if (!sizes.good() || (split && sizes.chunks() < 2)) return {TANDEM_BAD_VALUE, 0, 0, {}, 0};
  const uint32_t heads = uint32_t(sizes.heads);
  uint32_t part = heads < kLanes ? heads : kLanes;
  while (part > 0 && !fits_heads<Ends>(device, part, uint32_t(sizes.dim))) part /= 2;
  const int64_t spans = split ? sizes.chunks() : 1;
  if (part == 0 || sizes.rows * heads * spans > INT32_MAX / 2)
    return {TANDEM_TOO_LARGE, 0, 0, {}, 0};
  const int64_t tasks = sizes.rows * ceil_div(heads, part) * spans;
  Dealt dealt{
      TANDEM_OK, part, uint32_t(tasks < device.cube_cores ? tasks : device.cube_cores), {}, 0};
  if (!split || tasks == 0) return dealt;
  dealt.tile = merge_tile<Ends>(device, sizes);
  dealt.merge_blocks = rows::row_blocks(&device, sizes.rows * ceil_div(heads, dealt.tile.heads));
  return dealt;
}

}  // namespace tandem

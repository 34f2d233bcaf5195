// Attention over cache entries as a kernel: a block, a cube core with its vector cores, takes a
// row, and of many heads a part.
#pragma once

#include "_attention_vector.h"

namespace tandem {

// What the kernels are told but pointers.
struct AttentionShape {
  uint32_t rows, heads, dim, part, blocks, l0_bytes;
  uint32_t window_count, main_count;
  int32_t window_format, main_format;
  float scale;
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
__aicore__ inline void each_task(const AttentionShape &s, uint32_t block, F f) {
  const uint32_t parts = (s.heads + s.part - 1) / s.part;
  for (uint32_t i = block; i < s.rows * parts; i += s.blocks) {
    const uint32_t first = i % parts * s.part;
    f(Task{i / parts, first, Heads{s.heads - first < s.part ? s.heads - first : s.part}});
  }
}

constexpr uint32_t half_of(uint32_t part) { return (part + 1) / 2; }

template <class Ends>
__aicore__ inline void attend(Gm<bfloat16_t> q, const Caches &caches, Gm<float> sink,
                              const AttentionShape &s, const Ends &ends) {
  using Vector = AttentionVector<Ends>;
  if (ASCEND_IS_AIC) {
    begin_products();
    AttentionCube cube(s.dim, s.part, s.l0_bytes, Vector::plan(half_of(s.part), s.dim),
                       Ends::kBringsQueries);
    const uint32_t chunks = caches.of(s, 0).chunks();
    cube.begin();
    each_task(s, uint32_t(AscendC::GetBlockIdx()), [&](const Task &task) {
      cube.run(q + (int64_t(task.row) * s.heads + task.first) * s.dim, task.heads, chunks);
    });
    cube.end();
  }
  if (ASCEND_IS_AIV) {
    AscendC::InitSocState();
    rows::keep_infinity_and_nan();
    Vector vector(s.dim, half_of(s.part), ends);
    vector.begin();
    each_task(s, uint32_t(AscendC::GetBlockIdx()) / 2, [&](const Task &task) {
      vector.run(q, caches.of(s, task.row), task, sink, s.scale);
    });
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
};

// A launch: its blocks, and how many heads a task has.
struct Dealt {
  int32_t status;
  uint32_t part, blocks;
};

// Few rows are cut into parts of fewer heads, which gather the same entries, so that more cores
// have work.
template <class Ends>
Dealt deal(const tandem_ascend_device &device, const AttentionSizes &sizes) {
  if (!sizes.good()) return {TANDEM_BAD_VALUE, 0, 0};
  const uint32_t heads = uint32_t(sizes.heads);
  uint32_t part = heads < 64 ? heads : 64;
  while (part > 0 && !fits_heads<Ends>(device, part, uint32_t(sizes.dim))) part /= 2;
  if (part == 0 || sizes.rows * heads > INT32_MAX / 2) return {TANDEM_TOO_LARGE, 0, 0};
  while (part >= 32 && sizes.rows * ceil_div(heads, part) < device.cube_cores) part /= 2;
  const int64_t tasks = sizes.rows * ceil_div(heads, part);
  return {TANDEM_OK, part, uint32_t(tasks < device.cube_cores ? tasks : device.cube_cores)};
}

}  // namespace tandem

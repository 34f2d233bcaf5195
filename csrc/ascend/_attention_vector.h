// The vector cores' side of attention: entries to L1, scores to weights, and the sums of chunks.
// While the cube core multiplies a chunk, the vector cores bring the one after the next.
#pragma once

#include "_attention_cube.h"
#include "_attention_sums.h"

namespace tandem {

// A row's two lists of slots, one after the other.
struct TwoLists {
  Entries window, main;
  __aicore__ inline uint32_t chunks() const {
    const uint32_t count = chunks_of(window.count) + chunks_of(main.count);
    return count > 0 ? count : 1;
  }
  __aicore__ inline const Entries &list(uint32_t chunk) const {
    return chunk < chunks_of(window.count) ? window : main;
  }
  __aicore__ inline uint32_t start(uint32_t chunk) const {
    const uint32_t before = chunks_of(window.count);
    return (chunk < before ? chunk : chunk - before) * kChunk;
  }
  // Slots of a chunk.
  __aicore__ inline uint32_t size(uint32_t chunk) const {
    const uint32_t left = list(chunk).count - start(chunk);
    return left < kChunk ? left : kChunk;
  }
};

// A row, those of its heads that a block takes at once, and the chunks of entries that it takes.
struct Task {
  uint32_t row, first;
  Heads heads;
  uint32_t start, end;

  // The heads of this vector core; how many of the task come before them.
  __aicore__ inline uint32_t skipped() const {
    return AscendC::GetSubBlockIdx() == 0 ? 0 : heads.first_half();
  }
  __aicore__ inline Part part() const {
    return {row, first + skipped(), heads.of(uint32_t(AscendC::GetSubBlockIdx()))};
  }
};

// What tasks of one chunk leave for merging: outputs f32 [rows, chunks, heads, dim], then peaks and
// sums f32 [rows, chunks, 2, heads].
struct Partial {
  Gm<float> all;
  uint32_t rows, chunks, heads, dim;

  __aicore__ inline Gm<float> outputs(uint32_t row, uint32_t chunk) const {
    return all + int64_t(row * chunks + chunk) * heads * dim;
  }
  __aicore__ inline Gm<float> numbers(uint32_t row, uint32_t chunk) const {
    return outputs(rows, 0) + int64_t(row * chunks + chunk) * 2 * heads;
  }
};

// Rows of this core's heads in UB to the blocks of 16 elements that a matrix of the task's heads
// has at `base` of L1.
__aicore__ inline void send_rows(const AscendC::LocalTensor<bfloat16_t> &from, uint32_t width,
                                 uint32_t base, const Task &task) {
  const uint32_t lines = align_to(task.heads.count, kFractalRows), bytes = 2 * lines * width;
  AscendC::DataCopyParams blocks;
  blocks.blockCount = width / 16;
  blocks.blockLen = 1;
  blocks.srcGap = 0;
  blocks.dstGap = lines - 1;
  for (uint32_t head = 0; head < task.part().count; ++head) {
    const uint32_t offset = (task.skipped() + head) * kBlockBytes;
    const AscendC::LocalTensor<bfloat16_t> to(AscendC::TPosition::A1, base + offset,
                                              (bytes - offset) / 2);
    AscendC::DataCopy(to, from[head * width], blocks);
  }
}

template <class Ends>
class AttentionVector {
 public:
  using Sums = HeadSums<Ends>;
  // UB of a vector core with so many heads: their sums, slots, scores, weights, what the gather
  // needs.
  static constexpr uint32_t kSlots = 2 * 4 * kChunk;
  TANDEM_SHARED static inline UbPlan plan(uint32_t heads, uint32_t dim) {
    return {Sums::room(heads, dim) + kSlots, 4 * heads * kChunk, Sums::kNumbers,
            Sums::output_bytes(heads, dim)};
  }
  TANDEM_SHARED static inline uint32_t gather_base(uint32_t heads, uint32_t dim) {
    const UbPlan all = plan(heads, dim);
    return all.scores + 2 * all.scores_bytes + all.scores_bytes / 2;
  }
  TANDEM_SHARED static inline uint32_t room(uint32_t heads, uint32_t dim) {
    return gather_base(heads, dim) + EntryGather::room(dim);
  }

  __aicore__ inline AttentionVector(uint32_t dim, uint32_t most_heads, const Ends &ends)
      : dim_(dim),
        ub_(plan(most_heads, dim)),
        sums_(dim, most_heads, ends),
        gather_(dim, gather_base(most_heads, dim), AttentionCube::entries_base()) {}

  __aicore__ inline void begin() {
    gather_.begin();
    sums_.begin();
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID2);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID1);
  }
  __aicore__ inline void end() {
    gather_.end();
    sums_.end();
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID2);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID1);
  }

  // A task, of the queries and the sinks of all. Its chunks are merged and delivered, or left in
  // memory if it has not all of them.
  __aicore__ inline void run(Gm<bfloat16_t> q, const TwoLists &lists, const Task &task,
                             Gm<float> sink, float scale, const Partial &partial) {
    task_ = task;
    part_ = task.part();
    sums_.start(part_, sink);
    if constexpr (Ends::kBringsQueries) sums_.bring_queries(task, q);
    const bool whole = task.start == 0 && task.end == lists.chunks();
    bring(lists, task.start, before_ % 2);
    if (task.start + 1 < task.end) bring(lists, task.start + 1, (before_ + 1) % 2);
    for (uint32_t chunk = task.start; chunk < task.end; ++chunk) {
      const uint32_t which = before_++ % 2;
      weigh_chunk(which, lists.size(chunk), scale);
      if (!whole) store_numbers(partial.numbers(task.row, chunk), partial.heads);
      AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID1);
      if (chunk + 2 < task.end) bring(lists, chunk + 2, which);
      if (whole)
        merge_chunk();
      else
        store_output(partial.outputs(task.row, chunk));
    }
    if (whole)
      sums_.finish();
    else
      sums_.leave();
  }

 private:
  const uint32_t dim_;
  const UbPlan ub_;
  Sums sums_;
  EntryGather gather_;
  Task task_;
  Part part_;
  uint32_t before_ = 0;  // chunks weighed

  template <class T>
  __aicore__ inline AscendC::LocalTensor<T> buffer(uint32_t offset, uint32_t bytes) const {
    return AscendC::LocalTensor<T>(AscendC::TPosition::VECCALC, offset, bytes / sizeof(T));
  }
  __aicore__ inline AscendC::LocalTensor<int32_t> slots(uint32_t which) const {
    return buffer<int32_t>(ub_.scores - kSlots + which * 4 * kChunk, 4 * kChunk);
  }
  __aicore__ inline AscendC::LocalTensor<float> scores(uint32_t which) const {
    return buffer<float>(ub_.scores + which * ub_.scores_bytes, ub_.scores_bytes);
  }
  __aicore__ inline AscendC::LocalTensor<bfloat16_t> weights() const {
    return buffer<bfloat16_t>(ub_.scores + 2 * ub_.scores_bytes, ub_.scores_bytes / 2);
  }

  // A chunk's slots to UB and its entries to L1.
  __aicore__ inline void bring(const TwoLists &lists, uint32_t chunk, uint32_t which) {
    const uint32_t count = lists.size(chunk);
    const Entries &list = lists.list(chunk);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1 + which);
    if (count > 0) {
      AscendC::GlobalTensor<int32_t> from;
      from.SetGlobalBuffer(list.slots + lists.start(chunk));
      rows::load_row(slots(which), from, 0, count);
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID1 + which);
    gather_.bring(list, lists.start(chunk));
  }

  // Scores in UB to weights in L1.
  __aicore__ inline void weigh_chunk(uint32_t which, uint32_t count, float scale) const {
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID1 + which);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID1);
    AscendC::CrossCoreWaitFlag<2, PIPE_V>(kScoresReady);
    asc_vf_call<weigh>(scores(which).GetPhyAddr(), slots(which).GetPhyAddr(),
                       weights().GetPhyAddr(), sums_.chunk_peaks().GetPhyAddr(),
                       sums_.chunk_sums().GetPhyAddr(), part_.count, count, scale);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1 + which);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID1);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID1);
    send_rows(weights(), kChunk, AttentionCube::weights_base(dim_), task_);
    AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(kWeightsOfChunk);
  }

  __aicore__ inline void merge_chunk() {
    sums_.merge_numbers(sums_.chunk_peaks().GetPhyAddr(), sums_.chunk_sums().GetPhyAddr());
    AscendC::CrossCoreWaitFlag<2, PIPE_V>(kOutputReady);
    sums_.merge_output(sums_.chunk_output().GetPhyAddr());
  }

  __aicore__ inline void store_numbers(Gm<float> to, uint32_t heads) const {
    if (part_.count == 0) return;
    AscendC::GlobalTensor<float> numbers;
    numbers.SetGlobalBuffer(to + part_.first);
    rows::store_row(numbers, 0, sums_.chunk_peaks(), part_.count);
    rows::store_row(numbers, heads, sums_.chunk_sums(), part_.count);
  }
  __aicore__ inline void store_output(Gm<float> to) const {
    AscendC::CrossCoreWaitFlag<2, PIPE_MTE3>(kOutputReady);
    if (part_.count == 0) return;
    AscendC::GlobalTensor<float> outputs;
    outputs.SetGlobalBuffer(to + int64_t(part_.first) * dim_);
    rows::store_row(outputs, 0, sums_.chunk_output(), part_.count * dim_);
  }
};

}  // namespace tandem

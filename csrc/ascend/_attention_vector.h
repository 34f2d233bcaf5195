// The vector cores' side of attention: entries to L1, scores to weights, and the sums of chunks.
//
// A chunk starts from nothing: it has a peak, a sum of weights and an output of its own, and chunks
// are merged one after another. So a row's bits depend on its own slots only. While the cube core
// multiplies a chunk, the vector cores bring the one after the next.
#pragma once

#include "_attention_cube.h"
#include "_attention_steps.h"

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

// A row, and those of its heads that a block takes at once.
struct Task {
  uint32_t row, first;
  Heads heads;

  // Heads of this vector core, and how many of the task come before them.
  __aicore__ inline uint32_t own() const { return heads.of(uint32_t(AscendC::GetSubBlockIdx())); }
  __aicore__ inline uint32_t skipped() const {
    return AscendC::GetSubBlockIdx() == 0 ? 0 : heads.first_half();
  }
};

// Rows of this core's heads in UB to the blocks of 16 elements that a
// matrix of the task's heads has at `base` of L1.
__aicore__ inline void send_rows(const AscendC::LocalTensor<bfloat16_t> &from, uint32_t width,
                                 uint32_t base, const Task &task) {
  const uint32_t lines = align_to(task.heads.count, kFractalRows), bytes = 2 * lines * width;
  AscendC::DataCopyParams blocks;
  blocks.blockCount = width / 16;
  blocks.blockLen = 1;
  blocks.srcGap = 0;
  blocks.dstGap = lines - 1;
  for (uint32_t head = 0; head < task.own(); ++head) {
    const uint32_t offset = (task.skipped() + head) * kBlockBytes;
    const AscendC::LocalTensor<bfloat16_t> to(AscendC::TPosition::A1, base + offset,
                                              (bytes - offset) / 2);
    AscendC::DataCopy(to, from[head * width], blocks);
  }
}

// Ends: what an op does before and after attention. It has
//   kBringsQueries      whether it lays the queries in L1, rather than the cube core
//   room, scratch       bytes of UB of its own, and of those it needs only while it delivers
//   begin, end          flags before and after all tasks
//   bring(task, q, rows)  queries to L1, through the rows, which nothing else uses then
//   deliver(task, rows, scratch)  outputs, bf16 in the rows, to memory
template <class Ends>
class AttentionVector {
 public:
  // UB of a vector core with so many heads: numbers of heads, slots, scores, weights, outputs of a
  // chunk and their sums, rows of bf16, what the ends and what the gather need.
  static constexpr uint32_t kNumbers = 8 * 4 * kLanes, kSlots = 2 * 4 * kChunk;
  __aicore__ static inline UbPlan plan(uint32_t heads, uint32_t dim) {
    const uint32_t scores = kNumbers + kSlots, sums = 4 * (heads * dim + rows::kStep);
    const uint32_t scratch = Ends::scratch(heads, dim);
    return {scores, 4 * heads * kChunk, scores + 10 * heads * kChunk,
            sums > scratch ? sums : scratch};
  }
  // Pairs of a row are read a register at a time from where they begin, so that the last has room
  // for one behind it.
  __aicore__ static inline uint32_t rows_bytes(uint32_t heads, uint32_t dim) {
    return 2 * rows::whole_steps(heads * dim) + 4 * rows::kStep;
  }
  __aicore__ static inline uint32_t rows_base(uint32_t heads, uint32_t dim) {
    const UbPlan all = plan(heads, dim);
    return all.output + 2 * all.output_bytes;
  }
  __aicore__ static inline uint32_t ends_base(uint32_t heads, uint32_t dim) {
    return rows_base(heads, dim) + rows_bytes(heads, dim);
  }
  __aicore__ static inline uint32_t room(uint32_t heads, uint32_t dim) {
    return ends_base(heads, dim) + Ends::room(dim) + EntryGather::room(dim);
  }

  __aicore__ inline AttentionVector(uint32_t dim, uint32_t most_heads, const Ends &ends)
      : dim_(dim),
        most_(most_heads),
        ub_(plan(most_heads, dim)),
        ends_(ends),
        gather_(dim, ends_base(most_heads, dim) + Ends::room(dim), AttentionCube::entries_base()) {}

  __aicore__ inline void begin() {
    gather_.begin();
    ends_.begin();
    for (int32_t i = 1; i < 4; ++i) AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID1);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
  }
  __aicore__ inline void end() {
    gather_.end();
    ends_.end();
    for (int32_t i = 1; i < 4; ++i) AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID1);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
  }

  // A task, of the queries and the sinks of all.
  __aicore__ inline void run(Gm<bfloat16_t> q, const TwoLists &lists, const Task &task,
                             Gm<float> sink, float scale) {
    const uint32_t chunks = lists.chunks();
    task_ = task;
    load_sinks(sink);
    if constexpr (Ends::kBringsQueries) {
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
      ends_.bring(task_, q, result());
      AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
    }
    asc_vf_call<start_sums>(number(kPeaks), number(kTotals));
    bring(lists, 0);
    if (chunks > 1) bring(lists, 1);
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      weigh_chunk((before_ + chunk) % 2, lists.size(chunk), scale);
      if (chunk + 2 < chunks) bring(lists, chunk + 2);
      merge_chunk(chunk == 0);
    }
    before_ += chunks;
    finish();
  }

 private:
  enum Number : uint32_t {
    kPeaks,
    kTotals,
    kChunkPeaks,
    kChunkSums,
    kKeep,
    kTake,
    kSinks,
    kShares
  };

  const uint32_t dim_, most_;
  const UbPlan ub_;
  Ends ends_;
  EntryGather gather_;
  Task task_;
  uint32_t before_ = 0;  // chunks of tasks before this one

  template <class T>
  __aicore__ inline AscendC::LocalTensor<T> buffer(uint32_t offset, uint32_t bytes) const {
    return AscendC::LocalTensor<T>(AscendC::TPosition::VECCALC, offset, bytes / sizeof(T));
  }
  __aicore__ inline AscendC::LocalTensor<float> numbers(Number which) const {
    return buffer<float>(which * 4 * kLanes, 4 * kLanes);
  }
  __aicore__ inline Ub<float> number(Number which) const { return numbers(which).GetPhyAddr(); }
  __aicore__ inline AscendC::LocalTensor<int32_t> slots(uint32_t which) const {
    return buffer<int32_t>(kNumbers + which * 4 * kChunk, 4 * kChunk);
  }
  __aicore__ inline AscendC::LocalTensor<float> scores(uint32_t which) const {
    return buffer<float>(ub_.scores + which * ub_.scores_bytes, ub_.scores_bytes);
  }
  __aicore__ inline AscendC::LocalTensor<bfloat16_t> weights() const {
    return buffer<bfloat16_t>(ub_.scores + 2 * ub_.scores_bytes, ub_.scores_bytes / 2);
  }
  __aicore__ inline AscendC::LocalTensor<float> chunk_output() const {
    return buffer<float>(ub_.output, ub_.output_bytes);
  }
  __aicore__ inline AscendC::LocalTensor<float> output() const {
    return buffer<float>(ub_.output + ub_.output_bytes, ub_.output_bytes);
  }
  __aicore__ inline AscendC::LocalTensor<bfloat16_t> result() const {
    return buffer<bfloat16_t>(rows_base(most_, dim_), rows_bytes(most_, dim_));
  }

  __aicore__ inline void load_sinks(Gm<float> sink) const {
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID3);
    if (task_.own() > 0) {
      AscendC::GlobalTensor<float> from;
      from.SetGlobalBuffer(sink + task_.first + task_.skipped());
      rows::load_row(numbers(kSinks), from, 0, task_.own());
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID3);
  }

  // A chunk's slots to UB and its entries to L1. The buffers of a chunk are those of the one before
  // the last.
  __aicore__ inline void bring(const TwoLists &lists, uint32_t chunk) {
    const uint32_t which = (before_ + chunk) % 2, count = lists.size(chunk);
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
  __aicore__ inline void weigh_chunk(uint32_t which, uint32_t count, float scale) {
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID1 + which);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID1);
    AscendC::CrossCoreWaitFlag<2, PIPE_V>(kScoresReady);
    asc_vf_call<weigh>(scores(which).GetPhyAddr(), slots(which).GetPhyAddr(),
                       weights().GetPhyAddr(), number(kChunkPeaks), number(kChunkSums), task_.own(),
                       count, scale);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1 + which);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID1);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID1);
    send_rows(weights(), kChunk, AttentionCube::weights_base(dim_), task_);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID1);
    AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(kWeightsOfChunk);
  }

  __aicore__ inline void merge_chunk(bool first) const {
    asc_vf_call<merge_sums>(number(kPeaks), number(kTotals), number(kChunkPeaks),
                            number(kChunkSums), number(kKeep), number(kTake), task_.own());
    AscendC::CrossCoreWaitFlag<2, PIPE_V>(kOutputReady);
    const Ub<float> sums(output().GetPhyAddr()), chunk(chunk_output().GetPhyAddr());
    if (first)
      asc_vf_call<merge_outputs<true>>(sums, chunk, number(kKeep), number(kTake), task_.own(),
                                       dim_);
    else
      asc_vf_call<merge_outputs<false>>(sums, chunk, number(kKeep), number(kTake), task_.own(),
                                        dim_);
  }

  __aicore__ inline void finish() {
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID3);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
    if (task_.own() > 0) {
      asc_vf_call<shares_of>(number(kPeaks), number(kTotals), number(kSinks), number(kShares),
                             task_.own());
      asc_vf_call<finish_outputs>(output().GetPhyAddr(), number(kShares), result().GetPhyAddr(),
                                  task_.own(), dim_);
      ends_.deliver(task_, result(), buffer<uint8_t>(ub_.output, ub_.output_bytes));
    }
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID3);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
  }
};

}  // namespace tandem

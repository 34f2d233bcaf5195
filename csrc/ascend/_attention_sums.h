// The heads of a vector core, from the first chunk of entries to what the op delivers: the peak of
// each, the sum of its weights and its output, chunk merged into chunk.
//
// A chunk starts from nothing: it has a peak, a sum and an output of its own, and chunks are merged
// one after another. So a row's bits depend on its own slots only, whoever made the chunks.
#pragma once

#include "_attention_steps.h"

namespace tandem {

// Heads of a row that a vector core has.
struct Part {
  uint32_t row, first, count;
};

// Ends: what an op does before and after attention. It has
//   kBringsQueries           whether it lays the queries in L1, rather than the cube core
//   room, scratch            bytes of UB of its own, and of those it needs only while it delivers
//   end                      waits for what is under way after all tasks
//   prepare(part, own)       loads to its own UB what the others need
//   bring(task, q, rows, own)  queries to L1, through the rows, which nothing else uses then
//   deliver(part, rows, own, scratch)  outputs, bf16 in the rows, to memory
template <class Ends>
class HeadSums {
 public:
  // UB for so many heads: their numbers, the outputs of a chunk, their sums, rows of bf16, what the
  // ends need.
  static constexpr uint32_t kNumbers = 8 * 4 * kLanes;
  TANDEM_SHARED static constexpr uint32_t output_bytes(uint32_t heads, uint32_t dim) {
    const uint32_t sums = 4 * (heads * dim + rows::kStep), scratch = Ends::scratch(heads, dim);
    return sums > scratch ? sums : scratch;
  }
  // Pairs of a row are read a register at a time from where they begin, so that the last has room
  // for one behind it.
  TANDEM_SHARED static constexpr uint32_t rows_bytes(uint32_t heads, uint32_t dim) {
    return 2 * rows::whole_steps(heads * dim) + 4 * rows::kStep;
  }
  TANDEM_SHARED static constexpr uint32_t room(uint32_t heads, uint32_t dim) {
    return kNumbers + 2 * output_bytes(heads, dim) + rows_bytes(heads, dim) + Ends::room(dim);
  }

  __aicore__ inline HeadSums(uint32_t dim, uint32_t most_heads, const Ends &ends)
      : dim_(dim), most_(most_heads), ends_(ends) {}

  __aicore__ inline void begin() const {
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID3);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
  }
  __aicore__ inline void end() const {
    ends_.end();
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID3);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
  }

  // Of a chunk: its peaks, its sums, and its outputs [heads, dim].
  __aicore__ inline AscendC::LocalTensor<float> chunk_peaks() const { return numbers(kChunkPeaks); }
  __aicore__ inline AscendC::LocalTensor<float> chunk_sums() const { return numbers(kChunkSums); }
  __aicore__ inline AscendC::LocalTensor<float> chunk_output() const {
    return buffer<float>(kNumbers, output_bytes(most_, dim_));
  }

  // Begins a part; `sink` is that of head 0.
  __aicore__ inline void start(const Part &part, Gm<float> sink) {
    part_ = part;
    first_ = true;
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID3);
    if (part.count > 0) {
      AscendC::GlobalTensor<float> from;
      from.SetGlobalBuffer(sink + part.first);
      rows::load_row(numbers(kSinks), from, 0, part.count);
      ends_.prepare(part, own());
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID3);
    asc_vf_call<start_sums>(number(kPeaks), number(kTotals));
  }
  template <class Task>
  __aicore__ inline void bring_queries(const Task &task, Gm<bfloat16_t> q) {
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
    ends_.bring(task, q, result(), own());
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
  }

  // The next chunk: sums first, which needs no output, then outputs.
  __aicore__ inline void merge_numbers(Ub<float> peaks, Ub<float> sums) const {
    asc_vf_call<merge_sums>(number(kPeaks), number(kTotals), peaks, sums, number(kKeep),
                            number(kTake), part_.count);
  }
  __aicore__ inline void merge_output(Ub<float> chunk) {
    const Ub<float> sums(output().GetPhyAddr());
    if (first_)
      asc_vf_call<merge_outputs<true>>(sums, chunk, number(kKeep), number(kTake), part_.count,
                                       dim_);
    else
      asc_vf_call<merge_outputs<false>>(sums, chunk, number(kKeep), number(kTake), part_.count,
                                        dim_);
    first_ = false;
  }

  // Ends a part, with its outputs or without.
  __aicore__ inline void finish() {
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID3);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
    if (part_.count > 0) {
      asc_vf_call<shares_of>(number(kPeaks), number(kTotals), number(kSinks), number(kShares),
                             part_.count);
      asc_vf_call<finish_outputs>(output().GetPhyAddr(), number(kShares), result().GetPhyAddr(),
                                  part_.count, dim_);
      ends_.deliver(part_, result(), own(), buffer<uint8_t>(kNumbers, output_bytes(most_, dim_)));
    }
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID3);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
  }
  __aicore__ inline void leave() const {
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID3);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID3);
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
  Ends ends_;
  Part part_{0, 0, 0};
  bool first_ = true;  // whether no chunk has been merged

  template <class T>
  __aicore__ inline AscendC::LocalTensor<T> buffer(uint32_t offset, uint32_t bytes) const {
    return AscendC::LocalTensor<T>(AscendC::TPosition::VECCALC, offset, bytes / sizeof(T));
  }
  __aicore__ inline AscendC::LocalTensor<float> numbers(Number which) const {
    return buffer<float>(which * 4 * kLanes, 4 * kLanes);
  }
  __aicore__ inline Ub<float> number(Number which) const { return numbers(which).GetPhyAddr(); }
  __aicore__ inline AscendC::LocalTensor<float> output() const {
    const uint32_t bytes = output_bytes(most_, dim_);
    return buffer<float>(kNumbers + bytes, bytes);
  }
  __aicore__ inline AscendC::LocalTensor<bfloat16_t> result() const {
    return buffer<bfloat16_t>(kNumbers + 2 * output_bytes(most_, dim_), rows_bytes(most_, dim_));
  }
  __aicore__ inline AscendC::LocalTensor<float> own() const {
    return buffer<float>(room(most_, dim_) - Ends::room(dim_), Ends::room(dim_));
  }
};

}  // namespace tandem

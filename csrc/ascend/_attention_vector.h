// The vector cores' side of attention: entries to L1, scores to weights, and the sums of chunks.
//
// A chunk starts from nothing: it has a peak, a sum of weights and an output of its own, and chunks
// are merged one after another. So a row's bits depend on its own slots only.
#pragma once

#include "_attention_cube.h"

namespace tandem {

namespace Reg = AscendC::Reg;

constexpr float kNothing = -__builtin_inff();
constexpr uint32_t kLanes = 64;  // heads that one register of numbers holds

// A peak that can be subtracted; that of no entries is minus infinity.
__simd_callee__ inline void finite_peak(Reg::RegTensor<float> &base, Reg::RegTensor<float> &peak,
                                        Reg::MaskReg &all) {
  Reg::RegTensor<float> zero;
  Reg::MaskReg none;
  Reg::Duplicate(zero, 0.0f);
  Reg::Compares<float, AscendC::CMPMODE::EQ>(none, peak, kNothing, all);
  Reg::Select(base, zero, peak, none);
}

// Of each head: weights of a chunk, their peak and their sum. Entries of no slot have no weight.
__simd_vf__ inline void weigh(Ub<float> scores, Ub<int32_t> slots, Ub<bfloat16_t> weights,
                              Ub<float> peaks, Ub<float> sums, uint32_t heads, uint32_t count,
                              float scale) {
  Reg::MaskReg all = Reg::CreateMask<float>(), some = Reg::UpdateMask<int32_t>(count), valid;
  Reg::RegTensor<int32_t> slot;
  Reg::RegTensor<float> score, nothing, peak, base, sum;
  Reg::LoadAlign(slot, slots);
  Reg::Compares<int32_t, AscendC::CMPMODE::GE>(valid, slot, 0, some);
  Reg::Duplicate(nothing, kNothing);
  for (uint16_t head = 0; head < uint16_t(heads); ++head) {
    Reg::LoadAlign(score, scores + head * kChunk);
    Reg::Muls(score, score, scale, all);
    Reg::Select(score, score, nothing, valid);
    Reg::Reduce<Reg::ReduceType::MAX>(peak, score, all);
    Reg::Duplicate(peak, peak, all);
    finite_peak(base, peak, all);
    Reg::Sub(score, score, base, all);
    Reg::Exp(score, score, all);
    Reg::Reduce<Reg::ReduceType::SUM>(sum, score, all);
    rows::store(weights + head * kChunk, score, all);
    Reg::StoreAlign<float, Reg::StoreDist::DIST_FIRST_ELEMENT_B32>(peaks + head, peak, all);
    Reg::StoreAlign<float, Reg::StoreDist::DIST_FIRST_ELEMENT_B32>(sums + head, sum, all);
  }
}

__simd_vf__ inline void start_sums(Ub<float> peaks, Ub<float> totals) {
  Reg::MaskReg all = Reg::CreateMask<float>();
  Reg::RegTensor<float> nothing, zero;
  Reg::Duplicate(nothing, kNothing);
  Reg::Duplicate(zero, 0.0f);
  Reg::StoreAlign(peaks, nothing, all);
  Reg::StoreAlign(totals, zero, all);
}

// Peaks and totals with a chunk's, and what the outputs of before and of the chunk are multiplied
// by.
__simd_vf__ inline void merge_sums(Ub<float> peaks, Ub<float> totals, Ub<float> chunk_peaks,
                                   Ub<float> chunk_sums, Ub<float> keep, Ub<float> take,
                                   uint32_t heads) {
  Reg::MaskReg mask = Reg::UpdateMask<float>(heads);
  Reg::RegTensor<float> peak, total, chunk_peak, sum, top, base, before, now;
  Reg::LoadAlign(peak, peaks);
  Reg::LoadAlign(total, totals);
  Reg::LoadAlign(chunk_peak, chunk_peaks);
  Reg::LoadAlign(sum, chunk_sums);
  Reg::Max(top, peak, chunk_peak, mask);
  finite_peak(base, top, mask);
  Reg::Sub(before, peak, base, mask);
  Reg::Exp(before, before, mask);
  Reg::Sub(now, chunk_peak, base, mask);
  Reg::Exp(now, now, mask);
  Reg::Mul(total, total, before, mask);
  Reg::Mul(sum, sum, now, mask);
  Reg::Add(total, total, sum, mask);
  Reg::StoreAlign(peaks, top, mask);
  Reg::StoreAlign(totals, total, mask);
  Reg::StoreAlign(keep, before, mask);
  Reg::StoreAlign(take, now, mask);
}

template <bool first>
__simd_vf__ inline void merge_outputs(Ub<float> sums, Ub<float> chunk, Ub<float> keep,
                                      Ub<float> take, uint32_t heads, uint32_t dim) {
  Reg::RegTensor<float> sum, part, before, now;
  const uint16_t steps = uint16_t(rows::steps(dim));
  for (uint16_t head = 0; head < uint16_t(heads); ++head) {
    Reg::LoadAlign<float, Reg::LoadDist::DIST_BRC_B32>(before, keep + head);
    Reg::LoadAlign<float, Reg::LoadDist::DIST_BRC_B32>(now, take + head);
    uint32_t left = dim;
    for (uint16_t i = 0; i < steps; ++i) {
      Reg::MaskReg mask = Reg::UpdateMask<float>(left);
      const uint32_t at = head * dim + i * rows::kStep;
      Reg::LoadAlign(part, chunk + at);
      Reg::Mul(part, part, now, mask);
      if constexpr (!first) {
        Reg::LoadAlign(sum, sums + at);
        Reg::Mul(sum, sum, before, mask);
        Reg::Add(part, part, sum, mask);
      }
      Reg::StoreAlign(sums + at, part, mask);
    }
  }
}

// What the outputs are multiplied by, so that weights and the sink's make one.
__simd_vf__ inline void shares_of(Ub<float> peaks, Ub<float> totals, Ub<float> sinks,
                                  Ub<float> shares, uint32_t heads) {
  Reg::MaskReg mask = Reg::UpdateMask<float>(heads), empty;
  Reg::RegTensor<float> peak, total, sink, top, weight, zero;
  Reg::LoadAlign(peak, peaks);
  Reg::LoadAlign(total, totals);
  Reg::LoadAlign(sink, sinks);
  Reg::Max(top, peak, sink, mask);
  Reg::Sub(weight, peak, top, mask);
  Reg::Exp(weight, weight, mask);
  Reg::Sub(sink, sink, top, mask);
  Reg::Exp(sink, sink, mask);
  Reg::Compares<float, AscendC::CMPMODE::EQ>(empty, total, 0.0f, mask);
  Reg::Mul(total, total, weight, mask);
  Reg::Add(total, total, sink, mask);
  Reg::Div(weight, weight, total, mask);
  Reg::Duplicate(zero, 0.0f);
  Reg::Select(weight, zero, weight, empty);
  Reg::StoreAlign(shares, weight, mask);
}

__simd_vf__ inline void finish_outputs(Ub<float> sums, Ub<float> shares, Ub<bfloat16_t> out,
                                       uint32_t heads, uint32_t dim, uint32_t stride) {
  Reg::RegTensor<float> sum, share;
  const uint16_t steps = uint16_t(rows::steps(dim));
  for (uint16_t head = 0; head < uint16_t(heads); ++head) {
    Reg::LoadAlign<float, Reg::LoadDist::DIST_BRC_B32>(share, shares + head);
    uint32_t left = dim;
    for (uint16_t i = 0; i < steps; ++i) {
      Reg::MaskReg mask = Reg::UpdateMask<float>(left);
      Reg::LoadAlign(sum, sums + head * dim + i * rows::kStep);
      Reg::Mul(sum, sum, share, mask);
      rows::store(out + head * stride + i * rows::kStep, sum, mask);
    }
  }
}

// A row's two lists of slots, one after the other.
struct TwoLists {
  Entries<SlotList> window, main;
  __aicore__ inline uint32_t chunks() const {
    const uint32_t count = chunks_of(window.list.count) + chunks_of(main.list.count);
    return count > 0 ? count : 1;
  }
  __aicore__ inline const Entries<SlotList> &list(uint32_t chunk) const {
    return chunk < chunks_of(window.list.count) ? window : main;
  }
  __aicore__ inline uint32_t start(uint32_t chunk) const {
    const uint32_t before = chunks_of(window.list.count);
    return (chunk < before ? chunk : chunk - before) * kChunk;
  }
};

class AttentionVector {
 public:
  // UB of a vector core with so many heads: numbers of heads, slots, scores, weights, outputs of a
  // chunk and their sums, results, and what the gather needs.
  static constexpr uint32_t kNumbers = 8 * 4 * kLanes;
  __aicore__ static inline uint32_t output_bytes(uint32_t heads, uint32_t dim) {
    return 4 * (heads * dim + rows::kStep);
  }
  __aicore__ static inline uint32_t result_stride(uint32_t dim) { return rows::whole_steps(dim); }
  __aicore__ static inline UbPlan plan(uint32_t heads, uint32_t dim) {
    const uint32_t scores = kNumbers + 4 * kChunk;
    return {scores, 4 * heads * kChunk, scores + 6 * heads * kChunk, output_bytes(heads, dim)};
  }
  __aicore__ static inline uint32_t gather_base(uint32_t heads, uint32_t dim) {
    return plan(heads, dim).output + 2 * output_bytes(heads, dim) + 2 * heads * result_stride(dim);
  }
  __aicore__ static inline uint32_t room(uint32_t heads, uint32_t dim) {
    return gather_base(heads, dim) + EntryGather::room(dim);
  }

  __aicore__ inline AttentionVector(uint32_t dim, uint32_t most_heads, uint32_t most_of_cube)
      : dim_(dim),
        most_(most_heads),
        rows_(align_to(most_of_cube, kFractalRows)),
        ub_(plan(most_heads, dim)),
        gather_(dim, gather_base(most_heads, dim), AttentionCube::entries_base()) {}

  __aicore__ inline void begin() {
    gather_.begin();
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID1);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
  }
  __aicore__ inline void end() {
    gather_.end();
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID1);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
  }

  // One row's heads; `sink` and `out` are those of the task's first head.
  __aicore__ inline void run(const TwoLists &lists, Heads heads, Gm<float> sink, float scale,
                             Gm<bfloat16_t> out) {
    heads_ = heads;
    const uint32_t chunks = lists.chunks();
    asc_vf_call<start_sums>(number(kPeaks), number(kTotals));
    gather_.bring(lists.list(0), lists.start(0));
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      if (chunk + 1 < chunks) gather_.bring(lists.list(chunk + 1), lists.start(chunk + 1));
      weigh_chunk(lists.list(chunk), lists.start(chunk), scale);
      merge_chunk(chunk == 0);
    }
    finish(sink, out);
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

  const uint32_t dim_, most_, rows_;
  const UbPlan ub_;
  EntryGather gather_;
  Heads heads_{0};

  template <class T>
  __aicore__ inline AscendC::LocalTensor<T> buffer(uint32_t offset, uint32_t bytes) const {
    return AscendC::LocalTensor<T>(AscendC::TPosition::VECCALC, offset, bytes / sizeof(T));
  }
  __aicore__ inline AscendC::LocalTensor<float> numbers(Number which) const {
    return buffer<float>(which * 4 * kLanes, 4 * kLanes);
  }
  __aicore__ inline Ub<float> number(Number which) const { return numbers(which).GetPhyAddr(); }
  __aicore__ inline AscendC::LocalTensor<int32_t> slots() const {
    return buffer<int32_t>(kNumbers, 4 * kChunk);
  }
  __aicore__ inline AscendC::LocalTensor<float> scores() const {
    return buffer<float>(ub_.scores, ub_.scores_bytes);
  }
  __aicore__ inline AscendC::LocalTensor<bfloat16_t> weights() const {
    return buffer<bfloat16_t>(ub_.scores + ub_.scores_bytes, ub_.scores_bytes / 2);
  }
  __aicore__ inline AscendC::LocalTensor<float> chunk_output() const {
    return buffer<float>(ub_.output, ub_.output_bytes);
  }
  __aicore__ inline AscendC::LocalTensor<float> output() const {
    return buffer<float>(ub_.output + ub_.output_bytes, ub_.output_bytes);
  }
  __aicore__ inline AscendC::LocalTensor<bfloat16_t> result() const {
    return buffer<bfloat16_t>(ub_.output + 2 * ub_.output_bytes, 2 * most_ * result_stride(dim_));
  }
  __aicore__ inline uint32_t own() const { return heads_.of(uint32_t(AscendC::GetSubBlockIdx())); }
  __aicore__ inline uint32_t skipped() const {
    return AscendC::GetSubBlockIdx() == 0 ? 0 : heads_.first_half();
  }

  // Scores in UB to weights in L1.
  __aicore__ inline void weigh_chunk(const Entries<SlotList> &list, uint32_t start, float scale) {
    const uint32_t count = list.list.count - start < kChunk ? list.list.count - start : kChunk;
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1);
    if (count > 0) {
      AscendC::GlobalTensor<int32_t> from;
      from.SetGlobalBuffer(list.list.slots + start);
      rows::load_row(slots(), from, 0, count);
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID1);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID1);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID1);
    AscendC::CrossCoreWaitFlag<2, PIPE_V>(kScoresReady);
    asc_vf_call<weigh>(scores().GetPhyAddr(), slots().GetPhyAddr(), weights().GetPhyAddr(),
                       number(kChunkPeaks), number(kChunkSums), own(), count, scale);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID1);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID1);
    AscendC::DataCopyParams blocks;
    blocks.blockCount = kChunk / 16;
    blocks.blockLen = 1;
    blocks.srcGap = 0;
    blocks.dstGap = align_to(heads_.count, kFractalRows) - 1;
    const uint32_t base = AttentionCube::weights_base(dim_), bytes = 2 * rows_ * kChunk;
    for (uint32_t head = 0; head < own(); ++head) {
      const uint32_t offset = (skipped() + head) * kBlockBytes;
      const AscendC::LocalTensor<bfloat16_t> to(AscendC::TPosition::A1, base + offset,
                                                (bytes - offset) / 2);
      AscendC::DataCopy(to, weights()[head * kChunk], blocks);
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID1);
    AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(kWeightsOfChunk);
  }

  __aicore__ inline void merge_chunk(bool first) {
    asc_vf_call<merge_sums>(number(kPeaks), number(kTotals), number(kChunkPeaks),
                            number(kChunkSums), number(kKeep), number(kTake), own());
    AscendC::CrossCoreWaitFlag<2, PIPE_V>(kOutputReady);
    const Ub<float> sums(output().GetPhyAddr()), chunk(chunk_output().GetPhyAddr());
    if (first)
      asc_vf_call<merge_outputs<true>>(sums, chunk, number(kKeep), number(kTake), own(), dim_);
    else
      asc_vf_call<merge_outputs<false>>(sums, chunk, number(kKeep), number(kTake), own(), dim_);
  }

  __aicore__ inline void finish(Gm<float> sink, Gm<bfloat16_t> out) {
    if (own() == 0) return;
    AscendC::GlobalTensor<float> from;
    from.SetGlobalBuffer(sink + skipped());
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1);
    rows::load_row(numbers(kSinks), from, 0, own());
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID1);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID1);
    asc_vf_call<shares_of>(number(kPeaks), number(kTotals), number(kSinks), number(kShares), own());
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
    asc_vf_call<finish_outputs>(output().GetPhyAddr(), number(kShares), result().GetPhyAddr(),
                                own(), dim_, result_stride(dim_));
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID2);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID2);
    AscendC::GlobalTensor<bfloat16_t> to;
    to.SetGlobalBuffer(out + int64_t(skipped()) * dim_);
    for (uint32_t head = 0; head < own(); ++head)
      rows::store_row(to, int64_t(head) * dim_, result()[head * result_stride(dim_)], dim_);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID2);
  }
};

}  // namespace tandem

// What vector cores do to the numbers of attention, in registers: scores to weights, the peaks and
// sums of chunks, and the outputs that are merged by them.
#pragma once

#include "_gather.h"

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
  const uint16_t steps = rows::rounds(dim);
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
                                       uint32_t heads, uint32_t dim) {
  Reg::RegTensor<float> sum, share;
  const uint16_t steps = rows::rounds(dim);
  for (uint16_t head = 0; head < uint16_t(heads); ++head) {
    Reg::LoadAlign<float, Reg::LoadDist::DIST_BRC_B32>(share, shares + head);
    uint32_t left = dim;
    for (uint16_t i = 0; i < steps; ++i) {
      Reg::MaskReg mask = Reg::UpdateMask<float>(left);
      Reg::LoadAlign(sum, sums + head * dim + i * rows::kStep);
      Reg::Mul(sum, sum, share, mask);
      rows::store(out + head * dim + i * rows::kStep, sum, mask);
    }
  }
}

}  // namespace tandem

// Coefficients in registers: four rows at a time, sixteen lanes to a row, a lane to a coefficient.
// See _mixing.h.
#pragma once

#include "_norm.h"
#include "_projection.h"

namespace hyper {

using rows::as;

constexpr uint32_t kRowLanes = 16;  // of a row: 2 m coefficients of pre and post, m * m of comb
constexpr uint32_t kFour = 4;       // rows of a register

// value = 1 / (1 + exp(-value))
__simd_callee__ inline void sigmoid(Reg::RegTensor<float> &value, Reg::MaskReg &all) {
  Reg::RegTensor<float> one;
  Reg::Neg(value, value, all);
  Reg::Exp(value, value, all);
  Reg::Adds(value, value, 1.0f, all);
  Reg::Duplicate(one, 1.0f);
  Reg::Div(value, one, value, all);
}

// One more member of each lane.
template <bool kLargest>
__simd_callee__ inline void fold_in(Reg::RegTensor<float> &result, Reg::RegTensor<float> &value,
                                    Reg::RegTensor<uint32_t> &index, Reg::MaskReg &all) {
  Reg::RegTensor<float> member;
  Reg::Gather(member, value, index);
  if constexpr (kLargest)
    Reg::Max(result, result, member, all);
  else
    Reg::Add(result, result, member, all);
}

// For each lane of comb, the sum or the largest of its value's M lanes, in the order of the
// indices.
template <int M, bool kLargest>
__simd_callee__ inline void fold(Reg::RegTensor<float> &result, Reg::RegTensor<float> &value,
                                 Reg::RegTensor<uint32_t> &i0, Reg::RegTensor<uint32_t> &i1,
                                 Reg::RegTensor<uint32_t> &i2, Reg::RegTensor<uint32_t> &i3,
                                 Reg::MaskReg &all) {
  Reg::Gather(result, value, i0);
  if constexpr (M > 1) fold_in<kLargest>(result, value, i1, all);
  if constexpr (M > 2) fold_in<kLargest>(result, value, i2, all);
  if constexpr (M > 3) fold_in<kLargest>(result, value, i3, all);
}

// Lanes of the members of each lane's row or column: `first` and those `step` apart from it.
template <int M>
__simd_callee__ inline void members_of(Reg::RegTensor<uint32_t> &i0, Reg::RegTensor<uint32_t> &i1,
                                       Reg::RegTensor<uint32_t> &i2, Reg::RegTensor<uint32_t> &i3,
                                       Reg::RegTensor<int32_t> &first, uint32_t step,
                                       Reg::MaskReg &all) {
  Reg::Adds(i0, as<uint32_t>(first), uint32_t(0), all);
  if constexpr (M > 1) Reg::Adds(i1, i0, step, all);
  if constexpr (M > 2) Reg::Adds(i2, i1, step, all);
  if constexpr (M > 3) Reg::Adds(i3, i2, step, all);
}

// Softmax over the rows of comb plus eps, then columns and rows in turn, `iterations` times
// columns. Lanes past the coefficients of a row hold anything, and no coefficient sees them.
template <int M>
__simd_callee__ inline void sinkhorn(Reg::RegTensor<float> &value, Reg::RegTensor<int32_t> &lane,
                                     Reg::RegTensor<int32_t> &place, float eps, uint32_t iterations,
                                     Reg::MaskReg &all) {
  Reg::RegTensor<uint32_t> r0, r1, r2, r3, c0, c1, c2, c3;
  Reg::RegTensor<int32_t> row, size, first;
  Reg::RegTensor<float> sum;
  Reg::Duplicate(size, int32_t(M));
  Reg::Div(row, place, size, all);
  Reg::Mul(row, row, size, all);
  Reg::Sub(first, lane, row, all);
  members_of<M>(c0, c1, c2, c3, first, M, all);
  Reg::Sub(first, place, row, all);
  Reg::Sub(first, lane, first, all);
  members_of<M>(r0, r1, r2, r3, first, 1, all);
  fold<M, true>(sum, value, r0, r1, r2, r3, all);
  Reg::Sub(value, value, sum, all);
  Reg::Exp(value, value, all);
  fold<M, false>(sum, value, r0, r1, r2, r3, all);
  Reg::Div(value, value, sum, all);
  Reg::Adds(value, value, eps, all);
  for (uint32_t i = 0; i < iterations; ++i) {
    if (i > 0) {
      fold<M, false>(sum, value, r0, r1, r2, r3, all);
      Reg::Adds(sum, sum, eps, all);
      Reg::Div(value, value, sum, all);
    }
    fold<M, false>(sum, value, c0, c1, c2, c3, all);
    Reg::Adds(sum, sum, eps, all);
    Reg::Div(value, value, sum, all);
  }
}

// The partial sums of four rows, chunks added in their order: two rows in each register.
__simd_callee__ inline void add_chunks(Reg::RegTensor<float> &low, Reg::RegTensor<float> &high,
                                       Ub<float> partial, uint32_t chunks, uint32_t stride,
                                       uint32_t count) {
  Reg::RegTensor<float> chunk;
  uint32_t left = count * kSums;
  Reg::MaskReg first = Reg::UpdateMask<float>(left), second = Reg::UpdateMask<float>(left);
  Reg::Duplicate(low, 0.0f);
  Reg::Duplicate(high, 0.0f);
  for (uint32_t i = 0; i < chunks; ++i) {
    Reg::LoadAlign(chunk, partial + i * stride);
    Reg::Add(low, low, chunk, first);
    Reg::LoadAlign(chunk, partial + (i * stride + kStep));
    Reg::Add(high, high, chunk, second);
  }
}

// What the lanes of four rows take from two registers of partial sums.
__simd_callee__ inline void four_rows(Reg::RegTensor<float> &value, Reg::RegTensor<float> &low,
                                      Reg::RegTensor<float> &high, Reg::RegTensor<uint32_t> &index,
                                      Reg::MaskReg &lower) {
  Reg::RegTensor<float> upper;
  Reg::Gather(value, low, index);
  Reg::Gather(upper, high, index);
  Reg::Select(value, value, upper, lower);
}

// The first numbers of a buffer for the lanes of each row, 0 for lanes past them.
__simd_callee__ inline void same_for_rows(Reg::RegTensor<float> &value, Ub<float> from,
                                          Reg::RegTensor<int32_t> &place, int32_t number,
                                          Reg::MaskReg &all) {
  Reg::RegTensor<float> zero;
  Reg::MaskReg used;
  Reg::LoadAlign(value, from);
  Reg::Gather(value, value, as<uint32_t>(place));
  Reg::Compares<int32_t, CMPMODE::LT>(used, place, number, all);
  Reg::Duplicate(zero, 0.0f);
  Reg::Select(value, value, zero, used);
}

// 1 / sqrt(value / width + eps)
__simd_callee__ inline void inverse_size(Reg::RegTensor<float> &value, float width, float eps,
                                         Reg::MaskReg &all) {
  Reg::RegTensor<float> one;
  rows::root_of_mean(value, width, eps, all);
  Reg::Duplicate(one, 1.0f);
  Reg::Div(value, one, value, all);
}

// value = value * size * scale + base
__simd_callee__ inline void affine(Reg::RegTensor<float> &value, Reg::RegTensor<float> &size,
                                   Reg::RegTensor<float> &scale, Reg::RegTensor<float> &base,
                                   Reg::MaskReg &all) {
  Reg::Mul(value, value, size, all);
  Reg::Mul(value, value, scale, all);
  Reg::Add(value, value, base, all);
}

// Coefficients of `count` rows. `constants` are 64 f32 each for the bases of pre and post, those of
// comb, and the scales. The partial sums of a chunk lie `stride` elements after those of the one
// before.
template <int M>
__simd_vf__ inline void mix_rows(Ub<float> partial, Ub<float> constants, Ub<float> pre,
                                 Ub<float> post, Ub<float> comb, uint32_t count, uint32_t chunks,
                                 uint32_t stride, float width, float norm_eps, float hc_eps,
                                 uint32_t iterations) {
  constexpr uint32_t kCombs = first_groups(M) * kGroup, kSquares = groups_of(M) * kGroup;
  Reg::RegTensor<float> low, high, value, other, size, head_base, comb_base, head_scale, comb_scale;
  Reg::RegTensor<int32_t> lane, place, begin;
  Reg::RegTensor<uint32_t> heads, combs, squares, tails;
  Reg::MaskReg all = Reg::CreateMask<float>(), lower, first;
  Reg::Arange(lane, int32_t(0));
  Reg::Duplicate(place, int32_t(kRowLanes - 1));
  Reg::And(place, lane, place, all);
  Reg::Duplicate(begin, int32_t(kRowLanes));
  Reg::And(begin, lane, begin, all);
  Reg::Add(begin, begin, begin, all);  // of the lane's row in a register of two rows
  Reg::Add(as<int32_t>(heads), begin, place, all);
  Reg::Adds(combs, heads, kCombs, all);
  Reg::Adds(squares, as<uint32_t>(begin), kSquares, all);
  Reg::Adds(tails, as<uint32_t>(lane), uint32_t(M), all);
  Reg::Compares<int32_t, CMPMODE::LT>(lower, lane, int32_t(2 * kRowLanes), all);

  same_for_rows(head_base, constants, place, 2 * M, all);
  same_for_rows(comb_base, constants + kStep, place, M * M, all);
  load_all(head_scale, constants + 2 * kStep);
  load_all(other, constants + (2 * kStep + 1));
  load_all(comb_scale, constants + (2 * kStep + 2));
  Reg::Compares<int32_t, CMPMODE::LT>(first, place, int32_t(M), all);
  Reg::Select(head_scale, head_scale, other, first);

  for (uint32_t row = 0; row < count; row += kFour) {
    add_chunks(low, high, partial + row * kSums, chunks, stride, count - row);
    four_rows(size, low, high, squares, lower);
    inverse_size(size, width, norm_eps, all);
    four_rows(value, low, high, heads, lower);
    affine(value, size, head_scale, head_base, all);
    sigmoid(value, all);
    Reg::Adds(other, value, hc_eps, all);
    Reg::StoreAlign(pre + row * kRowLanes, other, all);
    Reg::Gather(other, value, tails);
    Reg::Add(other, other, other, all);
    Reg::StoreAlign(post + row * kRowLanes, other, all);
    four_rows(value, low, high, combs, lower);
    affine(value, size, comb_scale, comb_base, all);
    sinkhorn<M>(value, lane, place, hc_eps, iterations, all);
    Reg::StoreAlign(comb + row * kRowLanes, value, all);
  }
}

}  // namespace hyper

// Dot products of rows in UB with the rows of the projection, four at a time. See _hyper.h.
#pragma once

#include "_streams.h"

namespace hyper {

// Outputs of a group. A group belongs to pre and post or to comb; what is missing in its last one
// repeats the last output.
constexpr uint32_t kGroup = 4;
TANDEM_SHARED constexpr uint32_t first_groups(uint32_t m) { return (2 * m + kGroup - 1) / kGroup; }
TANDEM_SHARED constexpr uint32_t groups_of(uint32_t m) {
  return first_groups(m) + (m * m + kGroup - 1) / kGroup;
}
// Row of the projection that place `i` of a group takes.
TANDEM_SHARED constexpr uint32_t output_of(uint32_t m, uint32_t group, uint32_t i) {
  const uint32_t heads = first_groups(m);
  const uint32_t begin = group < heads ? 0 : 2 * m, size = group < heads ? 2 * m : m * m;
  const uint32_t place = (group < heads ? group : group - heads) * kGroup + i;
  return begin + (place < size ? place : size - 1);
}

// Add the products of 64 elements of a row, or of two rows, with four rows of weights that lie
// `stride` apart.
template <int R>
__simd_callee__ inline void add_products(Reg::RegTensor<float> &a0, Reg::RegTensor<float> &a1,
                                         Reg::RegTensor<float> &a2, Reg::RegTensor<float> &a3,
                                         Reg::RegTensor<float> &b0, Reg::RegTensor<float> &b1,
                                         Reg::RegTensor<float> &b2, Reg::RegTensor<float> &b3,
                                         Ub<float> x, Ub<float> next, Ub<float> weights,
                                         uint32_t stride, Reg::MaskReg &mask) {
  Reg::RegTensor<float> a, b, weight;
  Reg::LoadAlign(a, x);
  if constexpr (R > 1) Reg::LoadAlign(b, next);
  Reg::LoadAlign(weight, weights);
  Reg::MulAddDst(a0, a, weight, mask);
  if constexpr (R > 1) Reg::MulAddDst(b0, b, weight, mask);
  Reg::LoadAlign(weight, weights + stride);
  Reg::MulAddDst(a1, a, weight, mask);
  if constexpr (R > 1) Reg::MulAddDst(b1, b, weight, mask);
  Reg::LoadAlign(weight, weights + 2 * stride);
  Reg::MulAddDst(a2, a, weight, mask);
  if constexpr (R > 1) Reg::MulAddDst(b2, b, weight, mask);
  Reg::LoadAlign(weight, weights + 3 * stride);
  Reg::MulAddDst(a3, a, weight, mask);
  if constexpr (R > 1) Reg::MulAddDst(b3, b, weight, mask);
}

__simd_callee__ inline void store_sum(Ub<float> to, Reg::RegTensor<float> &lanes,
                                      Reg::MaskReg &all) {
  Reg::RegTensor<float> sum;
  Reg::Reduce<Reg::ReduceType::SUM>(sum, lanes, all);
  Reg::StoreAlign<float, Reg::StoreDist::DIST_FIRST_ELEMENT_B32>(to, sum, all);
}

__simd_callee__ inline void store_sums(Ub<float> to, Reg::RegTensor<float> &s0,
                                       Reg::RegTensor<float> &s1, Reg::RegTensor<float> &s2,
                                       Reg::RegTensor<float> &s3, Reg::MaskReg &all) {
  store_sum(to, s0, all);
  store_sum(to + 1, s1, all);
  store_sum(to + 2, s2, all);
  store_sum(to + 3, s3, all);
}

// Dot products of `count` times R rows with `groups` groups. A dot product is summed in 64 lanes,
// stream by stream, and then as a tree. What is left of a stream after whole registers comes first
// of all: it clears the lanes that it does not use.
template <int R>
__simd_vf__ inline void project_rows(Ub<float> wide, Ub<float> weights, Ub<float> sums,
                                     uint32_t count, uint32_t groups, uint32_t m, uint32_t columns,
                                     uint32_t pitch) {
  Reg::RegTensor<float> a0, a1, a2, a3, b0, b1, b2, b3;
  Reg::MaskReg all = Reg::CreateMask<float>();
  const uint32_t stride = m * pitch, whole = columns / kStep, rest = columns % kStep;
  for (uint32_t row = 0; row < count * R; row += R) {
    const Ub<float> x = wide + row * stride, next = x + (R - 1) * stride;
    for (uint32_t group = 0; group < groups; ++group) {
      const Ub<float> w = weights + group * kGroup * stride;
      Reg::Duplicate(a0, 0.0f);
      Reg::Duplicate(a1, 0.0f);
      Reg::Duplicate(a2, 0.0f);
      Reg::Duplicate(a3, 0.0f);
      if constexpr (R > 1) {
        Reg::Duplicate(b0, 0.0f);
        Reg::Duplicate(b1, 0.0f);
        Reg::Duplicate(b2, 0.0f);
        Reg::Duplicate(b3, 0.0f);
      }
      for (uint32_t stream = 0; rest > 0 && stream < m; ++stream) {
        uint32_t left = rest;
        Reg::MaskReg mask = Reg::UpdateMask<float>(left);
        const uint32_t at = stream * pitch + whole * kStep;
        add_products<R>(a0, a1, a2, a3, b0, b1, b2, b3, x + at, next + at, w + at, stride, mask);
      }
      for (uint32_t stream = 0; stream < m; ++stream)
        for (uint32_t i = 0; i < whole; ++i) {
          const uint32_t at = stream * pitch + i * kStep;
          add_products<R>(a0, a1, a2, a3, b0, b1, b2, b3, x + at, next + at, w + at, stride, all);
        }
      const Ub<float> to = sums + (row * kSums + group * kGroup);
      store_sums(to, a0, a1, a2, a3, all);
      if constexpr (R > 1) store_sums(to + kSums, b0, b1, b2, b3, all);
    }
  }
}

}  // namespace hyper

// The register-level part of a pass over the streams of a trunk: mix a sub-layer's output in,
// collapse, and prepare the projection. See _hyper.h.
#pragma once

#include "_rows.h"

namespace hyper {

using namespace AscendC;
using rows::kStep;

constexpr int32_t kMostStreams = 4;
constexpr uint32_t kSums = 32;  // f32 that a row and a chunk of its columns leave

// One number in all lanes.
__simd_callee__ inline void load_all(Reg::RegTensor<float> &all, Ub<float> from) {
  Reg::LoadAlign<float, Reg::LoadDist::DIST_BRC_B32>(all, from);
}

// total = sum of h_i times the numbers that lie `stride` apart, plus what total holds where
// `starts` is false; i ascending, one rounding for each term.
template <int M, bool starts>
__simd_callee__ inline void add_streams(Reg::RegTensor<float> &total, Reg::RegTensor<float> &h0,
                                        Reg::RegTensor<float> &h1, Reg::RegTensor<float> &h2,
                                        Reg::RegTensor<float> &h3, Ub<float> numbers,
                                        uint32_t stride, Reg::MaskReg &mask) {
  Reg::RegTensor<float> number;
  load_all(number, numbers);
  if constexpr (starts)
    Reg::Mul(total, h0, number, mask);
  else
    Reg::MulAddDst(total, h0, number, mask);
  if constexpr (M > 1) {
    load_all(number, numbers + stride);
    Reg::MulAddDst(total, h1, number, mask);
  }
  if constexpr (M > 2) {
    load_all(number, numbers + 2 * stride);
    Reg::MulAddDst(total, h2, number, mask);
  }
  if constexpr (M > 3) {
    load_all(number, numbers + 3 * stride);
    Reg::MulAddDst(total, h3, number, mask);
  }
}

// post_j y + sum over i of comb_ij h_i, of the stream j that post and comb point to.
template <int M>
__simd_callee__ inline void mix_stream(Reg::RegTensor<float> &total, Reg::RegTensor<float> &y,
                                       Reg::RegTensor<float> &h0, Reg::RegTensor<float> &h1,
                                       Reg::RegTensor<float> &h2, Reg::RegTensor<float> &h3,
                                       Ub<float> post, Ub<float> comb, Reg::MaskReg &mask) {
  Reg::RegTensor<float> number;
  load_all(number, post);
  Reg::Mul(total, y, number, mask);
  add_streams<M, false>(total, h0, h1, h2, h3, comb, M, mask);
}

// Store a stream, and keep it as it was rounded.
__simd_callee__ inline void store_rounded(Ub<bfloat16_t> to, Reg::RegTensor<float> &kept,
                                          Reg::RegTensor<float> &value, Reg::MaskReg &mask) {
  Reg::RegTensor<bfloat16_t> narrow;
  Reg::Cast<bfloat16_t, float, rows::kNarrow>(narrow, value, mask);
  Reg::StoreAlign<bfloat16_t, Reg::StoreDist::DIST_PACK_B32>(to, narrow, mask);
  Reg::Cast<float, bfloat16_t, rows::kWiden>(kept, narrow, mask);
}

// All streams after a sub-layer, in place of those before it.
template <int M>
__simd_callee__ inline void mix_streams(Reg::RegTensor<float> &h0, Reg::RegTensor<float> &h1,
                                        Reg::RegTensor<float> &h2, Reg::RegTensor<float> &h3,
                                        Ub<bfloat16_t> y, Ub<float> post, Ub<float> comb,
                                        Ub<bfloat16_t> mixed, uint32_t pitch, Reg::MaskReg &mask) {
  Reg::RegTensor<float> output, t0, t1, t2, t3;
  rows::load(output, y, mask);
  mix_stream<M>(t0, output, h0, h1, h2, h3, post, comb, mask);
  if constexpr (M > 1) mix_stream<M>(t1, output, h0, h1, h2, h3, post + 1, comb + 1, mask);
  if constexpr (M > 2) mix_stream<M>(t2, output, h0, h1, h2, h3, post + 2, comb + 2, mask);
  if constexpr (M > 3) mix_stream<M>(t3, output, h0, h1, h2, h3, post + 3, comb + 3, mask);
  store_rounded(mixed, h0, t0, mask);
  if constexpr (M > 1) store_rounded(mixed + pitch, h1, t1, mask);
  if constexpr (M > 2) store_rounded(mixed + 2 * pitch, h2, t2, mask);
  if constexpr (M > 3) store_rounded(mixed + 3 * pitch, h3, t3, mask);
}

// Keep a stream as f32, zeros past its end, and add its squares.
__simd_callee__ inline void keep_wide(Ub<float> to, Reg::RegTensor<float> &squares,
                                      Reg::RegTensor<float> &h, Reg::MaskReg &all) {
  Reg::StoreAlign(to, h, all);
  Reg::MulAddDst(squares, h, h, all);
}

// `columns` columns of `count` rows of M streams. Streams lie `pitch` elements apart, rows M times
// as far. The sum of a row's squares goes to element `place` of its sums.
template <int M, bool kMixes, bool kCollapses, bool kProjects>
__simd_vf__ inline void pass_streams(Ub<bfloat16_t> trunk, Ub<bfloat16_t> y, Ub<float> post,
                                     Ub<float> comb, Ub<float> pre, Ub<bfloat16_t> mixed,
                                     Ub<bfloat16_t> x, Ub<float> wide, Ub<float> sums,
                                     uint32_t count, uint32_t columns, uint32_t pitch,
                                     uint32_t place) {
  Reg::RegTensor<float> h0, h1, h2, h3, squares, total;
  Reg::MaskReg all = Reg::CreateMask<float>();
  const uint16_t registers = rows::rounds(columns);
  for (uint32_t row = 0; row < count; ++row) {
    uint32_t left = columns;
    if constexpr (kProjects) Reg::Duplicate(squares, 0.0f);
    for (uint16_t i = 0; i < registers; ++i) {
      Reg::MaskReg mask = Reg::UpdateMask<float>(left);
      const uint32_t first = row * M * pitch + i * kStep, own = row * pitch + i * kStep;
      rows::load(h0, trunk + first, mask);
      if constexpr (M > 1) rows::load(h1, trunk + (first + pitch), mask);
      if constexpr (M > 2) rows::load(h2, trunk + (first + 2 * pitch), mask);
      if constexpr (M > 3) rows::load(h3, trunk + (first + 3 * pitch), mask);
      if constexpr (kMixes)
        mix_streams<M>(h0, h1, h2, h3, y + own, post + row * M, comb + row * M * M, mixed + first,
                       pitch, mask);
      if constexpr (kCollapses) {
        add_streams<M, true>(total, h0, h1, h2, h3, pre + row * M, 1, mask);
        rows::store(x + own, total, mask);
      }
      if constexpr (kProjects) {
        keep_wide(wide + first, squares, h0, all);
        if constexpr (M > 1) keep_wide(wide + (first + pitch), squares, h1, all);
        if constexpr (M > 2) keep_wide(wide + (first + 2 * pitch), squares, h2, all);
        if constexpr (M > 3) keep_wide(wide + (first + 3 * pitch), squares, h3, all);
      }
    }
    if constexpr (kProjects) {
      Reg::Reduce<Reg::ReduceType::SUM>(squares, squares, all);
      Reg::StoreAlign<float, Reg::StoreDist::DIST_FIRST_ELEMENT_B32>(sums + (row * kSums + place),
                                                                     squares, all);
    }
  }
}

}  // namespace hyper

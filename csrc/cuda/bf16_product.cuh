// bf16 activations times bf16 weights, f32 out.
#pragma once

#include "gemm.cuh"

namespace tandem {

template <class P>
int32_t run_bf16(const Batch &b, Stream stream) {
  using Gemm = typename P::Gemm;
  using Value = cutlass::bfloat16_t;
  typename Gemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {b.outputs, b.tokens, b.depth, b.count},
      {static_cast<const Value *>(b.w), cute::make_stride(b.w_row, cute::_1{}, b.w_batch),
       static_cast<const Value *>(b.x), cute::make_stride(b.x_row, cute::_1{}, b.x_batch)},
      {{},
       nullptr,
       {},
       static_cast<float *>(b.out),
       cute::make_stride(cute::_1{}, b.out_row, b.out_batch)},
      hardware(0)};
  return launch<Gemm>(arguments, {nullptr, 0}, stream);
}

using Bf16Small = Product<Bf16, Bf16, float, cute::Shape<cute::_128, cute::_64, cute::_64>, OneSm,
                          cutlass::gemm::KernelTmaWarpSpecialized1SmSm100,
                          cutlass::epilogue::TmaWarpSpecialized1Sm, false>;
using Bf16Large = Product<Bf16, Bf16, float, cute::Shape<cute::_256, cute::_256, cute::_64>, TwoSm,
                          cutlass::gemm::KernelTmaWarpSpecialized2SmSm100,
                          cutlass::epilogue::TmaWarpSpecialized2Sm, false>;

}  // namespace tandem

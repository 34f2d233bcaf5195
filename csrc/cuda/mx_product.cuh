// mxfp8 activations times mxfp8 weights (fp8_block32 with its scales repeated for each row), one or
// a batch.
#pragma once

#include "gemm.cuh"
#include "scale_layout.cuh"

namespace tandem {

// CUTLASS accepts scales only where they lie as those of one whole matrix after another.  Its
// kernels read them by any strides, so the question is asked about the matrices as if they lay like
// that.
template <class Base>
struct AnyScales : Base {
  static cutlass::Status can_implement(typename Base::Arguments arguments) {
    arguments.mainloop.layout_SFA = ScaleConfig::tile_atom_to_shape_SFA(arguments.problem_shape);
    arguments.mainloop.layout_SFB = ScaleConfig::tile_atom_to_shape_SFB(arguments.problem_shape);
    return Base::can_implement(arguments);
  }
};

template <class P>
int32_t run_mx(const Batch &b, Stream stream) {
  using Gemm = AnyScales<typename P::Gemm>;
  using Code = cutlass::float_e4m3_t;
  using Scale = cutlass::float_ue8m0_t;
  static_assert(std::is_same_v<typename P::Main::LayoutSFA, ScaleLayout>);
  typename Gemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {b.outputs, b.tokens, b.depth, b.count},
      {static_cast<const Code *>(b.w), cute::make_stride(b.w_row, cute::_1{}, b.w_batch),
       static_cast<const Code *>(b.x), cute::make_stride(b.x_row, cute::_1{}, b.x_batch),
       reinterpret_cast<const Scale *>(b.w_scale),
       scale_layout(b.outputs, b.depth, b.count, b.w_scale_band, b.w_scale_batch),
       reinterpret_cast<const Scale *>(b.x_scale),
       scale_layout(b.tokens, b.depth, b.count, b.x_scale_band, b.x_scale_batch)},
      {{},
       nullptr,
       {},
       static_cast<typename Gemm::ElementD *>(b.out),
       cute::make_stride(cute::_1{}, b.out_row, b.out_batch)},
      hardware(0)};
  return launch<Gemm>(arguments, {nullptr, 0}, stream);
}

template <class Out>
using MxSmall = Product<Mxfp8, Mxfp8, Out, cute::Shape<cute::_128, cute::_64, cute::_128>, OneSm,
                        cutlass::gemm::KernelTmaWarpSpecialized1SmMxf8f6f4Sm100,
                        cutlass::epilogue::TmaWarpSpecialized1Sm, false>;
template <class Out>
using MxLarge = Product<Mxfp8, Mxfp8, Out, cute::Shape<cute::_256, cute::_256, cute::_128>, TwoSm,
                        cutlass::gemm::KernelTmaWarpSpecialized2SmMxf8f6f4Sm100,
                        cutlass::epilogue::TmaWarpSpecialized2Sm, false>;

}  // namespace tandem

// How a tensor-core product is put together from CUTLASS collectives, and how it is launched.
//
// In every product the weight is operand A (M counts its rows, the outputs) and the activation is
// operand B (N counts tokens), so that few tokens cost a narrow tile in N instead of a mostly empty
// one in M.  Outputs of one token lie next to one another: D is M-major.  All tiles walk K in the
// same steps from the front into one f32 accumulator, which is why the tile may be chosen by the
// number of tokens without changing a token's bits.
#pragma once

#include <cuda_runtime.h>
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>

#include <cute/tensor.hpp>
#include <cutlass/detail/sm100_blockscaled_layout.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "kernels.h"

namespace tandem {

// One kind of operand: element type, elements that an address must be a multiple of, and the
// builder's operator class.
struct Mxfp8 {
  using Element = cutlass::mx_float8_t<cutlass::float_e4m3_t>;
  static constexpr int kAlignment = 16;
  using Operator = cutlass::arch::OpClassBlockScaledTensorOp;
};
struct Mxfp4 {
  using Element = cutlass::mx_float4_t<cutlass::float_e2m1_t>;
  static constexpr int kAlignment = 128;
  using Operator = cutlass::arch::OpClassBlockScaledTensorOp;
};
struct Bf16 {
  using Element = cutlass::bfloat16_t;
  static constexpr int kAlignment = 8;
  using Operator = cutlass::arch::OpClassTensorOp;
};

// A product.  In its grouped form strides and layouts are arrays in device memory, an entry a
// group.
template <class W, class X, class Out, class TileMNK, class ClusterMNK, class MainSchedule,
          class EndSchedule, bool kGrouped>
struct Product {
  using Weight = cutlass::layout::RowMajor;
  using Tokens = cutlass::layout::ColumnMajor;
  using Result = cutlass::layout::ColumnMajor;
  template <class L>
  using Form = std::conditional_t<kGrouped, L *, L>;
  using Problem =
      std::conditional_t<kGrouped, cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>,
                         cute::Shape<int, int, int, int>>;
  static constexpr int kOutAlignment = 128 / cutlass::sizeof_bits<Out>::value;

  using End = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm100, typename W::Operator, TileMNK, ClusterMNK,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, Form<Result>,
      kOutAlignment, Out, Form<Result>, kOutAlignment, EndSchedule>::CollectiveOp;
  using Stages = cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
      sizeof(typename End::SharedStorage))>;
  using Main = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm100, typename W::Operator, typename W::Element, Form<Weight>, W::kAlignment,
      typename X::Element, Form<Tokens>, X::kAlignment, float, TileMNK, ClusterMNK, Stages,
      MainSchedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Problem, Main, End>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  static constexpr int32_t kSharedBytes = Kernel::SharedStorageSize;
  static_assert(kSharedBytes <= 227 * 1024, "more shared memory than a block can have");
};

// Queue a product whose arguments are complete.  Nothing is allocated and nothing waits.
template <class Gemm>
int32_t launch(typename Gemm::Arguments const &arguments, Workspace workspace,
               cudaStream_t stream) {
  if (Gemm::can_implement(arguments) != cutlass::Status::kSuccess) return TANDEM_BAD_SHAPE;
  if (static_cast<int64_t>(Gemm::get_workspace_size(arguments)) > workspace.bytes)
    return TANDEM_SMALL_WORKSPACE;
  Gemm gemm;
  if (gemm.initialize(arguments, workspace.data, stream) != cutlass::Status::kSuccess)
    return TANDEM_LAUNCH_FAILED;
  if (gemm.run(stream) != cutlass::Status::kSuccess) return TANDEM_LAUNCH_FAILED;
  return TANDEM_OK;
}

inline cutlass::KernelHardwareInfo hardware(int32_t multiprocessors) {
  cutlass::KernelHardwareInfo info;
  cudaGetDevice(&info.device_id);
  info.sm_count = multiprocessors;
  return info;
}

using OneSm = cute::Shape<cute::_1, cute::_1, cute::_1>;
using TwoSm = cute::Shape<cute::_2, cute::_1, cute::_1>;

}  // namespace tandem

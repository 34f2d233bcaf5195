// mxfp8 activations times mxfp4 weights, a weight for each group of rows.  How many rows a group
// has is known on the device only: the grid covers the device, and blocks take tiles from a table
// that a kernel has written before.
#pragma once

#include "gemm.cuh"
#include "grouped_table.cuh"

namespace tandem {

template <class P>
typename P::Gemm::Arguments grouped_arguments(const Groups &g, const GroupTable &t,
                                              int32_t multiprocessors) {
  using Kernel = typename P::Kernel;
  static_assert(std::is_same_v<typename Kernel::InternalStrideA, GroupStride>);
  static_assert(std::is_same_v<typename Kernel::InternalStrideB, GroupStride>);
  static_assert(std::is_same_v<typename Kernel::InternalStrideD, GroupOutStride>);
  static_assert(std::is_same_v<typename P::Main::InternalLayoutSFA, ScaleLayout>);
  using WeightCode = typename P::Main::ArrayElementA;
  using TokenCode = typename P::Main::ArrayElementB;
  using Scale = cutlass::float_ue8m0_t;
  using Out = typename P::Gemm::ElementD;
  return {cutlass::gemm::GemmUniversalMode::kGrouped,
          {g.groups, t.shape, nullptr},
          {reinterpret_cast<const WeightCode **>(t.w), t.w_stride,
           reinterpret_cast<const TokenCode **>(t.x), t.x_stride,
           reinterpret_cast<const Scale **>(t.w_scale), t.w_layout,
           reinterpret_cast<const Scale **>(t.x_scale), t.x_layout},
          {{}, nullptr, nullptr, reinterpret_cast<Out **>(t.out), t.out_stride},
          hardware(multiprocessors)};
}

template <class P>
int32_t run_grouped(const Groups &g, Workspace workspace, int32_t multiprocessors, Stream stream) {
  Workspace rest;
  GroupTable table = carve(workspace, g, &rest);
  if (rest.bytes < 0) return TANDEM_SMALL_WORKSPACE;
  if (int32_t status = prepare_groups(g, table, stream)) return status;
  return launch<typename P::Gemm>(grouped_arguments<P>(g, table, multiprocessors), rest, stream);
}

template <class P>
int64_t grouped_workspace(int32_t multiprocessors) {
  auto arguments = grouped_arguments<P>({}, {}, multiprocessors);
  return static_cast<int64_t>(P::Gemm::get_workspace_size(arguments));
}

using GroupedSmall =
    Product<Mxfp4, Mxfp8, cutlass::bfloat16_t, cute::Shape<cute::_128, cute::_64, cute::_128>,
            OneSm, cutlass::gemm::KernelPtrArrayTmaWarpSpecialized1SmMxf8f6f4Sm100,
            cutlass::epilogue::PtrArrayTmaWarpSpecialized1Sm, true>;
using GroupedLarge =
    Product<Mxfp4, Mxfp8, cutlass::bfloat16_t, cute::Shape<cute::_256, cute::_128, cute::_128>,
            TwoSm, cutlass::gemm::KernelPtrArrayTmaWarpSpecialized2SmMxf8f6f4Sm100,
            cutlass::epilogue::PtrArrayTmaWarpSpecialized2Sm, true>;

}  // namespace tandem

// The documented functions of the cube path: copies to L1, LoadData, Mmad, MmadMx and Fixpipe.
//
// 4-bit types: sizes of Nd2NzParams count bytes, as documented; a LocalTensor of them counts pairs
// of numbers.
#pragma once

#include "copy.h"
#include "cube_layouts.h"

namespace tandem::emulation {

template <class T>
constexpr bool is_fp8 = std::is_same_v<T, fp8_e4m3fn_t> || std::is_same_v<T, fp8_e5m2_t>;
template <class T>
constexpr bool is_fp4 = std::is_same_v<T, fp4x2_e2m1_t> || std::is_same_v<T, fp4x2_e1m2_t>;

template <class T>
constexpr CubeNumber number_of() {
  if constexpr (std::is_same_v<T, float>) return CubeNumber::f32;
  if constexpr (std::is_same_v<T, half>) return CubeNumber::f16;
  if constexpr (std::is_same_v<T, bfloat16_t>) return CubeNumber::bf16;
  if constexpr (std::is_same_v<T, fp8_e4m3fn_t>) return CubeNumber::e4m3;
  if constexpr (std::is_same_v<T, fp8_e5m2_t>) return CubeNumber::e5m2;
  if constexpr (std::is_same_v<T, fp4x2_e2m1_t>) return CubeNumber::e2m1;
  if constexpr (std::is_same_v<T, fp4x2_e1m2_t>) return CubeNumber::e1m2;
}

template <class Out, class Params>
FixpipeShape fixpipe_shape(const Params &p) {
  static_assert(std::is_same_v<Out, float> || std::is_same_v<Out, bfloat16_t>,
                "modelled are f32 and bf16 results");
  const bool narrow = std::is_same_v<Out, bfloat16_t>;
  if (p.quantPre != (narrow ? F322BF16 : NoQuant))
    fail("bad-parameter", "set quantPre to F322BF16 for bf16 results and to NoQuant for f32",
         "Fixpipe with quantPre %d to results of %s", int(p.quantPre), narrow ? "bf16" : "f32");
  if (p.reluEn || p.unitFlag != 0 || p.isChannelSplit)
    fail("not-modelled", "leave reluEn, unitFlag and isChannelSplit at their defaults",
         "Fixpipe with an option that this emulation lacks");
  FixpipeShape shape{p.nSize, p.mSize, p.srcStride, p.dstStride, 1, 0, 0, false, narrow};
  if constexpr (!std::is_same_v<decltype(p.params), uint8_t>) {
    shape.row_major = true;
    shape.matrices = p.params.ndNum;
    shape.src_matrix = p.params.srcNdStride;
    shape.dst_matrix = p.params.dstNdStride;
  }
  return shape;
}

}  // namespace tandem::emulation

namespace AscendC {

template <class T, bool enableSmallC0 = false>
inline void DataCopy(const LocalTensor<T> &dst, const GlobalTensor<T> &src,
                     const Nd2NzParams &params) {
  static_assert(!enableSmallC0, "not modelled");
  emulation::nd_to_nz(dst.place(), src.place(), sizeof(T), params);
}

template <class T, bool enableSmallC0 = false>
inline void DataCopy(const LocalTensor<T> &dst, const GlobalTensor<T> &src,
                     const Dn2NzParams &params) {
  static_assert(!enableSmallC0, "not modelled");
  static_assert(!emulation::is_fp8<T> && !std::is_same_v<T, fp8_e8m0_t>,
                "DN2NZ has no fp8 types: view scales as 16-bit elements");
  emulation::dn_to_nz(dst.place(), src.place(), sizeof(T), params);
}

// UB to L1, from a vector core, by the hardware's own path: the kernels are compiled with
// ENABLE_CV_COMM_VIA_SSBUF.
template <class T>
inline void DataCopy(const LocalTensor<T> &dst, const LocalTensor<T> &src,
                     const DataCopyParams &blocks) {
  emulation::ub_to_l1(dst.place(), src.place(), blocks.blockCount, blocks.blockLen, blocks.srcGap,
                      blocks.dstGap);
}

template <class T>
inline void Fill(const LocalTensor<T> &dst, const InitConstValueParams<T> &params) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "Fill takes elements of 16 and 32 bits");
  uint32_t pattern = 0;
  std::memcpy(&pattern, &params.initValue, sizeof(T));
  emulation::fill_l1(dst.place(), sizeof(T), pattern, params.repeatTimes, params.blockNum,
                     params.dstGap);
}

template <class T>
inline void LoadData(const LocalTensor<T> &dst, const LocalTensor<T> &src,
                     const LoadData2DParamsV2 &params) {
  emulation::load_matrix(dst.place(), src.place(), sizeof(T), params);
}

template <class T, class U>
inline void LoadData(const LocalTensor<U> &dst, const LocalTensor<T> &src,
                     const LocalTensor<fp8_e8m0_t> &scales, const LoadData2DParamsV2 &params,
                     const LoadData2DMxParams &scaleParams) {
  static_assert(std::is_same_v<T, U>, "source and destination have the same type");
  static_assert(emulation::is_fp8<T> || emulation::is_fp4<T>, "scales go with fp8 and fp4");
  emulation::load_matrix(dst.place(), src.place(), sizeof(T), params);
  emulation::load_scales(dst.place(), scales.place(), scaleParams);
}

template <class T, class U, class S>
inline void Mmad(const LocalTensor<T> &dst, const LocalTensor<U> &fm, const LocalTensor<S> &filter,
                 const MmadParams &params) {
  static_assert(std::is_same_v<T, float>, "modelled are f32 sums");
  static_assert((emulation::is_fp8<U> && emulation::is_fp8<S>) ||
                    (std::is_same_v<U, S> && !emulation::is_fp4<U>),
                "Mmad takes two matrices of one type, or two of fp8");
  emulation::multiply(dst.place(), fm.place(), emulation::number_of<U>(), filter.place(),
                      emulation::number_of<S>(), false, params);
}

template <class T, class U, class S>
inline void MmadMx(const LocalTensor<T> &dst, const LocalTensor<U> &fm,
                   const LocalTensor<S> &filter, const MmadParams &params) {
  static_assert(std::is_same_v<T, float>, "sums are f32");
  static_assert((emulation::is_fp8<U> && emulation::is_fp8<S>) ||
                    (emulation::is_fp4<U> && emulation::is_fp4<S>),
                "MmadMx takes two matrices of fp8, or two of fp4");
  emulation::multiply(dst.place(), fm.place(), emulation::number_of<U>(), filter.place(),
                      emulation::number_of<S>(), true, params);
}

inline void SetHF32Mode(HF32Mode mode) {
  if (mode != HF32Mode::DISABLE)
    emulation::fail("not-modelled", "multiply f32 as f32", "SetHF32Mode(ENABLE)");
}

template <class T, class U, const FixpipeConfig &config = CFG_ROW_MAJOR>
inline void Fixpipe(const GlobalTensor<T> &dst, const LocalTensor<U> &src,
                    const FixpipeParamsArch3510<config.format> &params) {
  static_assert(!config.isToUB, "this configuration is for UB");
  emulation::fixpipe_to_gm(dst.place(), src.place(), emulation::fixpipe_shape<T>(params));
}

template <class T, class U, const FixpipeConfig &config = CFG_ROW_MAJOR>
inline void Fixpipe(const LocalTensor<T> &dst, const LocalTensor<U> &src,
                    const FixpipeParamsArch3510<config.format> &params) {
  static_assert(config.isToUB, "a configuration with isToUB = true is needed");
  emulation::fixpipe_to_ub(dst.place(), src.place(), emulation::fixpipe_shape<T>(params),
                           params.dualDstCtl, params.subBlockId);
}

}  // namespace AscendC

// Rows of a matrix on vector cores: who takes which, and 64 elements of one at a time as f32 in
// registers.
//
// A register-level function goes through a row in steps of 64 elements; of the last step a mask
// selects what there is. Rows in UB take a whole number of steps, because loads read whole steps.
#pragma once

#include "kernel.h"

namespace rows {

using namespace AscendC;

constexpr uint32_t kStep = 64;        // f32 of a register
constexpr uint32_t kSystemUb = 2048;  // left to functions of the device that use UB themselves

TANDEM_SHARED constexpr uint32_t steps(uint32_t count) { return (count + kStep - 1) / kStep; }
TANDEM_SHARED constexpr uint32_t whole_steps(uint32_t count) { return steps(count) * kStep; }

// Steps of a register-level function.
__simd_callee__ inline uint16_t rounds(uint32_t count) {
  return uint16_t((count + kStep - 1) / kStep);
}

// Blocks of a launch over rows: as many as have rows, at most one a vector core.
inline int64_t row_blocks(const tandem_ascend_device *device, int64_t count) {
  return count < device->vector_cores ? count : device->vector_cores;
}

// Whether buffers of so many bytes leave UB what the device needs of it.
inline bool fits(const tandem_ascend_device *device, int64_t bytes) {
  return bytes + kSystemUb <= device->ub_bytes;
}

// The rows of this block: neighbours, so that what belongs to rows lies together.
struct Share {
  int64_t first, end;
};
__aicore__ inline Share share_of(int64_t count) {
  const int64_t blocks = GetBlockNum(), block = GetBlockIdx();
  return {count * block / blocks, count * (block + 1) / blocks};
}

// Conversions keep infinity and NaN, as their traits say, and those to fp8 keep NaN while
// saturating.
__aicore__ inline void keep_infinity_and_nan() {
  SetCtrlSpr<60, 60>(0);
  SetCtrlSpr<50, 50>(1);
}

template <class T>
__aicore__ inline void load_row(const LocalTensor<T> &row, const GlobalTensor<T> &from,
                                int64_t first, uint32_t count) {
  DataCopyPad(row, from[uint64_t(first)], {1, uint32_t(count * sizeof(T)), 0, 0, 0},
              DataCopyPadExtParams<T>{false, 0, 0, T{}});
}

template <class T>
__aicore__ inline void store_row(const GlobalTensor<T> &to, int64_t first,
                                 const LocalTensor<T> &row, uint32_t count) {
  DataCopyPad(to[uint64_t(first)], row, {1, uint32_t(count * sizeof(T)), 0, 0, 0});
}

constexpr Reg::CastTrait kWiden{Reg::RegLayout::ZERO, Reg::SatMode::UNKNOWN,
                                Reg::MaskMergeMode::ZEROING, RoundMode::UNKNOWN};
constexpr Reg::CastTrait kNarrow{Reg::RegLayout::ZERO, Reg::SatMode::NO_SAT,
                                 Reg::MaskMergeMode::ZEROING, RoundMode::CAST_RINT};
constexpr Reg::CastTrait kNarrowToHigh{Reg::RegLayout::ONE, Reg::SatMode::NO_SAT,
                                       Reg::MaskMergeMode::ZEROING, RoundMode::CAST_RINT};

// The same register with elements of another type.
template <class T, class U>
__simd_callee__ inline Reg::RegTensor<T> &as(Reg::RegTensor<U> &reg) {
  return (Reg::RegTensor<T> &)reg;
}

// 64 elements as f32.
__simd_callee__ inline void load(Reg::RegTensor<float> &value, Ub<bfloat16_t> from,
                                 Reg::MaskReg &mask) {
  Reg::RegTensor<bfloat16_t> narrow;
  Reg::LoadAlign<bfloat16_t, Reg::LoadDist::DIST_UNPACK_B16>(narrow, from);
  Reg::Cast<float, bfloat16_t, kWiden>(value, narrow, mask);
}
__simd_callee__ inline void load(Reg::RegTensor<float> &value, Ub<float> from, Reg::MaskReg &) {
  Reg::LoadAlign(value, from);
}

// 64 elements rounded to the nearest bf16.
__simd_callee__ inline void store(Ub<bfloat16_t> to, Reg::RegTensor<float> &value,
                                  Reg::MaskReg &mask) {
  Reg::RegTensor<bfloat16_t> narrow;
  Reg::Cast<bfloat16_t, float, kNarrow>(narrow, value, mask);
  Reg::StoreAlign<bfloat16_t, Reg::StoreDist::DIST_PACK_B32>(to, narrow, mask);
}

// Even and odd elements, 64 each, rounded to the nearest bf16: pairs in 32 bits.
__simd_callee__ inline void round_pairs(Reg::RegTensor<uint32_t> &pair, Reg::RegTensor<float> &even,
                                        Reg::RegTensor<float> &odd, Reg::MaskReg &mask) {
  Reg::RegTensor<bfloat16_t> low, high;
  Reg::Cast<bfloat16_t, float, kNarrow>(low, even, mask);
  Reg::Cast<bfloat16_t, float, kNarrowToHigh>(high, odd, mask);
  Reg::Or(pair, as<uint32_t>(low), as<uint32_t>(high), mask);
}

}  // namespace rows

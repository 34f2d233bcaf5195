// Quantised rows back to bf16: code times scale, which is exact within the range of bf16.
#pragma once

#include "_codec.h"

namespace codec {

// Scales of 64 groups as f32, from their bytes.
template <class Format>
__simd_callee__ inline void scale_values(Reg::RegTensor<float> &value, Ub<uint8_t> bytes,
                                         Reg::MaskReg &mask) {
  Reg::RegTensor<uint8_t> code;
  Reg::LoadAlign<uint8_t, Reg::LoadDist::DIST_UNPACK4_B8>(code, bytes);
  if constexpr (!kIsMx<Format>) {
    Reg::Cast<float, fp8_e4m3fn_t, rows::kWiden>(value, as<fp8_e4m3fn_t>(code), mask);
  } else {
    Reg::RegTensor<uint32_t> &bits = as<uint32_t>(value), constant;
    Reg::MaskReg special;
    Reg::ShiftLefts(bits, as<uint32_t>(code), int16_t(23), mask);
    Reg::Duplicate(constant, kHalfStep);
    Reg::Compares<uint32_t, CMPMODE::EQ>(special, as<uint32_t>(code), uint32_t(0), mask);
    Reg::Select(bits, constant, bits, special);
    Reg::Duplicate(constant, kNan);
    Reg::Compares<uint32_t, CMPMODE::EQ>(special, as<uint32_t>(code), uint32_t(255), mask);
    Reg::Select(bits, constant, bits, special);
  }
}

template <class Format>
__simd_vf__ inline void group_factors(Ub<uint8_t> bytes, Ub<float> factors, uint32_t count) {
  constexpr uint32_t kUnits = kDecodeUnits<Format>;
  Reg::RegTensor<float> value;
  Reg::MaskReg all = Reg::CreateMask<float>();
  const uint16_t parts = rows::rounds(count);
  for (uint16_t i = 0; i < parts; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(count);
    scale_values<Format>(value, bytes + i * kStep, mask);
    store_factors<kUnits>(factors + i * kStep * kUnits, value, all);
  }
}

// Four bits of each element as the f32 that they stand for: their magnitude, where exponent and
// mantissa meet, is the value times 2^-126.
__simd_callee__ inline void e2m1_values(Reg::RegTensor<float> &value,
                                        Reg::RegTensor<uint32_t> &code, Reg::MaskReg &mask) {
  Reg::RegTensor<uint32_t> sign, constant;
  Reg::RegTensor<uint32_t> &bits = as<uint32_t>(value);
  Reg::Duplicate(constant, uint32_t(7));
  Reg::And(bits, code, constant, mask);
  Reg::ShiftLefts(bits, bits, int16_t(22), mask);
  Reg::Muls(value, value, 0x1p126f, mask);
  Reg::Duplicate(constant, uint32_t(8));
  Reg::And(sign, code, constant, mask);
  Reg::ShiftLefts(sign, sign, int16_t(28), mask);
  Reg::Or(bits, bits, sign, mask);
}

__simd_vf__ inline void fp8_elements(Ub<uint8_t> codes, Ub<float> factors, Ub<bfloat16_t> row,
                                     uint32_t width) {
  Reg::RegTensor<uint8_t> code;
  Reg::RegTensor<float> value, factor;
  const uint16_t count = rows::rounds(width);
  for (uint16_t i = 0; i < count; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(width);
    Reg::LoadAlign<uint8_t, Reg::LoadDist::DIST_UNPACK4_B8>(code, codes + i * kStep);
    Reg::Cast<float, fp8_e4m3fn_t, rows::kWiden>(value, as<fp8_e4m3fn_t>(code), mask);
    Reg::LoadAlign<float, Reg::LoadDist::DIST_E2B_B32>(factor, factors + i * 8);
    Reg::Mul(value, value, factor, mask);
    rows::store(row + i * kStep, value, mask);
  }
}

__simd_vf__ inline void fp4_elements(Ub<uint8_t> codes, Ub<float> factors, Ub<uint32_t> pairs,
                                     uint32_t bytes) {
  Reg::RegTensor<uint8_t> byte;
  Reg::RegTensor<uint32_t> high;
  Reg::RegTensor<float> even, odd, factor;
  const uint16_t count = rows::rounds(bytes);
  for (uint16_t i = 0; i < count; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(bytes);
    Reg::LoadAlign<uint8_t, Reg::LoadDist::DIST_UNPACK4_B8>(byte, codes + i * kStep);
    Reg::ShiftRights(high, as<uint32_t>(byte), int16_t(4), mask);
    e2m1_values(even, as<uint32_t>(byte), mask);
    e2m1_values(odd, high, mask);
    Reg::LoadAlign<float, Reg::LoadDist::DIST_E2B_B32>(factor, factors + i * 8);
    Reg::Mul(even, even, factor, mask);
    Reg::Mul(odd, odd, factor, mask);
    rows::round_pairs(high, even, odd, mask);
    Reg::StoreAlign(pairs + i * kStep, high, mask);
  }
}

// All of it, on PIPE_V, for a row in UB.
template <class Format>
__aicore__ inline void decode_row(Ub<uint8_t> codes, Ub<uint8_t> scales, Ub<float> factors,
                                  Ub<bfloat16_t> row, uint32_t width) {
  asc_vf_call<group_factors<Format>>(scales, factors, groups<Format>(width));
  if constexpr (kIsFp8<Format>)
    asc_vf_call<fp8_elements>(codes, factors, row, width);
  else
    asc_vf_call<fp4_elements>(codes, factors, Ub<uint32_t>(row), width / 2);
}

}  // namespace codec

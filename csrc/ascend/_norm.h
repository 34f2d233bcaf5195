// The norm of a row that lies in UB.
#pragma once

#include "_rows.h"

namespace rows {

// value = sqrt(value / count + eps)
__simd_callee__ inline void root_of_mean(Reg::RegTensor<float> &value, float count, float eps,
                                         Reg::MaskReg &all) {
  Reg::RegTensor<float> number;
  Reg::Duplicate(number, count);
  Reg::Div(value, value, number, all);
  Reg::Adds(value, value, eps, all);
  Reg::Sqrt(value, value, all);
}

// y = x * rsqrt(mean(x^2) + eps) * weight, rounded once. Squares are summed in 64 lanes, then as a
// tree: the order depends on the width alone.
template <bool weighted>
__simd_vf__ inline void normalise(Ub<bfloat16_t> x, Ub<float> weight, Ub<bfloat16_t> y,
                                  uint32_t width, float eps) {
  Reg::RegTensor<float> value, square, sum, scale, one;
  Reg::MaskReg all = Reg::CreateMask<float>();
  Reg::Duplicate(sum, 0.0f);
  const uint16_t count = rows::rounds(width);
  uint32_t left = width;
  for (uint16_t i = 0; i < count; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(left);
    load(value, x + i * kStep, mask);
    Reg::Mul(square, value, value, mask);
    Reg::Add(sum, sum, square, all);
  }
  Reg::Reduce<Reg::ReduceType::SUM>(sum, sum, all);
  Reg::Duplicate(sum, sum, all);
  root_of_mean(sum, float(width), eps, all);
  Reg::Duplicate(one, 1.0f);
  Reg::Div(scale, one, sum, all);
  left = width;
  for (uint16_t i = 0; i < count; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(left);
    load(value, x + i * kStep, mask);
    Reg::Mul(value, value, scale, mask);
    if constexpr (weighted) {
      Reg::LoadAlign(square, weight + i * kStep);
      Reg::Mul(value, value, square, mask);
    }
    store(y + i * kStep, value, mask);
  }
}

}  // namespace rows

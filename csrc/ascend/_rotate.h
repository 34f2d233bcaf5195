// Pairs of neighbours rotated by angles; a pair of bf16 is one element of 32 bits.
#pragma once

#include "_rows.h"

namespace rows {

// 64 pairs, rotated and rounded to the nearest bf16.
__simd_callee__ inline void rotate_pairs(Reg::RegTensor<uint32_t> &pair,
                                         Reg::RegTensor<float> &cosine, Reg::RegTensor<float> &sine,
                                         Reg::MaskReg &mask) {
  Reg::RegTensor<float> even, odd, first, second;
  Reg::RegTensor<uint32_t> upper;
  Reg::Duplicate(upper, uint32_t(0xFFFF0000));
  Reg::ShiftLefts(as<uint32_t>(even), pair, int16_t(16), mask);
  Reg::And(as<uint32_t>(odd), pair, upper, mask);
  Reg::Mul(first, even, cosine, mask);
  Reg::Mul(second, odd, sine, mask);
  Reg::Sub(first, first, second, mask);
  Reg::Mul(second, even, sine, mask);
  Reg::Mul(odd, odd, cosine, mask);
  Reg::Add(second, second, odd, mask);
  round_pairs(pair, first, second, mask);
}

}  // namespace rows

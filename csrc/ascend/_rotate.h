// Pairs of neighbours rotated by angles; a pair of bf16 is one element of 32 bits.
#pragma once

#include "_rows.h"

namespace rows {

// 64 pairs: their even and odd elements as f32, rotated.
__simd_callee__ inline void rotate_pairs(Reg::RegTensor<float> &first,
                                         Reg::RegTensor<float> &second,
                                         Reg::RegTensor<uint32_t> &pair,
                                         Reg::RegTensor<float> &cosine, Reg::RegTensor<float> &sine,
                                         Reg::MaskReg &mask) {
  Reg::RegTensor<float> even, odd, product;
  Reg::RegTensor<uint32_t> high;
  Reg::Duplicate(high, uint32_t(0xFFFF0000));
  Reg::ShiftLefts(as<uint32_t>(even), pair, int16_t(16), mask);
  Reg::And(as<uint32_t>(odd), pair, high, mask);
  Reg::Mul(first, even, cosine, mask);
  Reg::Mul(product, odd, sine, mask);
  Reg::Sub(first, first, product, mask);
  Reg::Mul(second, even, sine, mask);
  Reg::Mul(product, odd, cosine, mask);
  Reg::Add(second, second, product, mask);
}

}  // namespace rows

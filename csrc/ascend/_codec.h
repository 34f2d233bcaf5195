// Quantised rows: from f32 or bf16 in UB to codes and scale bytes, and back. Rules in
// docs/CONTRACT.md.
//
// Encoding takes three functions of the row, because a register holds many groups' scales but few
// groups' elements: the size of each group, its scale byte and factor, and the codes. A factor
// stands in UB once for each 32 bytes of a register that it applies to, where a load spreads it
// over them.
#pragma once

#include "_rows.h"

namespace codec {

using namespace AscendC;
using rows::as;
using rows::kStep;

constexpr uint32_t kInfinity = 0x7F800000, kNan = 0x7FC00000, kMagnitude = 0x7FFFFFFF;
constexpr uint32_t kHalfStep = 0x400000;  // 2^-127, the smallest scale
constexpr uint32_t kOne = 127;            // scale byte of one, of groups that fill a row up

// ue8m0 scale of a group: the smallest power of two that is no less than its largest element by the
// largest code. Of the f32 pattern of that element: (bits + up) / 2^23 - down, because `up` carries
// where the mantissa is above the code's.
struct Mxfp8 {
  static constexpr uint32_t kGroup = 32, kLeast = 0x38D1B717 /* 1e-4 */, kUp = 0x1FFFFF, kDown = 8;
};
struct Mxfp4 {
  static constexpr uint32_t kGroup = 32, kLeast = 0x01C00000 /* 6 * 2^-126 */, kUp = 0x3FFFFF,
                            kDown = 2;
};
// e4m3 scale: the largest element by six, rounded.
struct Nvfp4 {
  static constexpr uint32_t kGroup = 16, kLeast = 0x3C400000 /* 6 * 2^-9 */;
};

// Their numbers in the C ABI.
enum : int32_t { kMxfp8 = 0, kMxfp4 = 1, kNvfp4 = 2 };

// Whether rows of this width are whole groups of a format.
inline bool whole_groups(int32_t width, int32_t format) {
  if (format < kMxfp8 || format > kNvfp4 || width < 1) return false;
  return width % (format == kNvfp4 ? 16 : 32) == 0;
}

template <class Format>
inline constexpr bool kIsMx = Format::kGroup == 32;
template <class Format>
inline constexpr bool kIsFp8 = Format::kGroup == 32 && Format::kDown == 8;
template <>
inline constexpr bool kIsFp8<Nvfp4> = false;

template <class Format>
TANDEM_SHARED constexpr uint32_t groups(uint32_t width) {
  return width / Format::kGroup;
}
// Scale bytes of a row: those of mxfp8 are filled up to an even number.
template <class Format>
TANDEM_SHARED constexpr uint32_t scale_bytes(uint32_t width) {
  return kIsFp8<Format> ? (groups<Format>(width) + 1) / 2 * 2 : groups<Format>(width);
}
template <class Format>
TANDEM_SHARED constexpr uint32_t code_bytes(uint32_t width) {
  return kIsFp8<Format> ? width : width / 2;
}
// Of a register of 64 elements of 4 bytes, how many units of 32 bytes a group covers. Decoded fp4
// has two to an element.
template <class Format>
constexpr uint32_t kEncodeUnits = Format::kGroup / 8;
template <class Format>
constexpr uint32_t kDecodeUnits = kIsFp8<Format> ? 4 : Format::kGroup / 16;

// Bytes of the buffers in UB, for a row.
template <class Format>
TANDEM_SHARED constexpr uint32_t codes_room(uint32_t width) {
  return rows::whole_steps(code_bytes<Format>(width));
}
template <class Format>
TANDEM_SHARED constexpr uint32_t scales_room(uint32_t width) {
  return rows::whole_steps(groups<Format>(width) + 1);
}
template <class Format>
TANDEM_SHARED constexpr uint32_t sizes_room(uint32_t width) {
  return 4 * rows::whole_steps(groups<Format>(rows::whole_steps(width)));
}
template <class Format>
TANDEM_SHARED constexpr uint32_t factors_room(uint32_t width, uint32_t units) {
  return 4 * units * rows::whole_steps(groups<Format>(rows::whole_steps(width)));
}

constexpr Reg::CastTrait kToFp8{Reg::RegLayout::ZERO, Reg::SatMode::SAT,
                                Reg::MaskMergeMode::ZEROING, RoundMode::CAST_RINT};

// Patterns of the largest magnitude of each group, f32; of a group with a NaN it is a NaN.
template <class Format, class T>
__simd_vf__ inline void group_sizes(Ub<T> row, Ub<uint32_t> sizes, uint32_t width) {
  Reg::RegTensor<float> value;
  Reg::RegTensor<uint32_t> magnitude, largest, even, odd;
  Reg::UnalignRegForStore rest;
  Reg::MaskReg all = Reg::CreateMask<uint32_t>();
  Reg::Duplicate(magnitude, kMagnitude);
  const uint16_t count = rows::rounds(width);
  for (uint16_t i = 0; i < count; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(width);
    rows::load(value, row + i * kStep, mask);
    Reg::And(largest, as<uint32_t>(value), magnitude, mask);
    Reg::ReduceDataBlock<Reg::ReduceType::MAX>(largest, largest, mask);
    Reg::DeInterleave(even, odd, largest, largest);
    Reg::Max(largest, even, odd, all);
    if constexpr (Format::kGroup == 32) {
      Reg::DeInterleave(even, odd, largest, largest);
      Reg::Max(largest, even, odd, all);
    }
    Reg::StoreUnAlign(sizes, largest, rest, kStep / Format::kGroup);
  }
  Reg::StoreUnAlignPost(sizes, rest, 0);
}

// Each of 64 factors as often as it has units.
template <uint32_t units>
__simd_callee__ inline void store_factors(Ub<float> to, Reg::RegTensor<float> &factor,
                                          Reg::MaskReg &all) {
  if constexpr (units == 1) {
    Reg::StoreAlign(to, factor, all);
  } else {
    Reg::RegTensor<float> low, high;
    Reg::Interleave(low, high, factor, factor);
    store_factors<units / 2>(to, low, all);
    store_factors<units / 2>(to + kStep * units / 2, high, all);
  }
}

// Scale bytes (as uint32) of 64 groups, and what their elements are multiplied by, from the
// patterns of their sizes.
template <class Format>
__simd_callee__ inline void power_scales(Reg::RegTensor<uint32_t> &scale,
                                         Reg::RegTensor<uint32_t> &factor,
                                         Reg::RegTensor<uint32_t> &size, Reg::MaskReg &mask) {
  Reg::RegTensor<uint32_t> constant;
  Reg::MaskReg special;
  Reg::Maxs(scale, size, Format::kLeast, mask);
  Reg::Adds(scale, scale, Format::kUp, mask);
  Reg::ShiftRights(scale, scale, int16_t(23), mask);
  Reg::Adds(scale, scale, uint32_t(0) - Format::kDown, mask);
  Reg::Compares<uint32_t, CMPMODE::EQ>(special, size, kInfinity, mask);
  Reg::Duplicate(constant, uint32_t(254));
  Reg::Select(scale, constant, scale, special);
  Reg::Sub(factor, constant, scale, mask);
  Reg::ShiftLefts(factor, factor, int16_t(23), mask);
  Reg::Duplicate(constant, kHalfStep);
  Reg::Select(factor, constant, factor, special);
  Reg::Compares<uint32_t, CMPMODE::GT>(special, size, kInfinity, mask);
  Reg::Duplicate(constant, uint32_t(255));
  Reg::Select(scale, constant, scale, special);
  Reg::Duplicate(constant, kNan);
  Reg::Select(factor, constant, factor, special);
}

// A quotient of few digits with the error of a division cut off: it is a tie of the coming rounding
// or well away from one.
__simd_callee__ inline void cut_error(Reg::RegTensor<float> &quotient, Reg::MaskReg &mask) {
  Reg::RegTensor<uint32_t> digits;
  Reg::Adds(digits, as<uint32_t>(quotient), uint32_t(0x80), mask);
  Reg::RegTensor<uint32_t> kept;
  Reg::Duplicate(kept, ~uint32_t(0xFF));
  Reg::And(as<uint32_t>(quotient), digits, kept, mask);
}

// The same of nvfp4, whose elements are divided by the scale.
__simd_callee__ inline void e4m3_scales(Reg::RegTensor<uint32_t> &scale,
                                        Reg::RegTensor<uint32_t> &divisor,
                                        Reg::RegTensor<uint32_t> &size, Reg::MaskReg &mask) {
  Reg::RegTensor<float> quotient, six;
  Reg::RegTensor<fp8_e4m3fn_t> code;
  Reg::RegTensor<uint32_t> constant;
  Reg::MaskReg spoilt;
  Reg::Maxs(as<uint32_t>(quotient), size, Nvfp4::kLeast, mask);
  Reg::Duplicate(six, 6.0f);
  Reg::Div(quotient, quotient, six, mask);
  cut_error(quotient, mask);
  Reg::Cast<fp8_e4m3fn_t, float, kToFp8>(code, quotient, mask);
  Reg::Cast<float, fp8_e4m3fn_t, rows::kWiden>(as<float>(divisor), code, mask);
  Reg::Compares<uint32_t, CMPMODE::GT>(spoilt, size, kInfinity, mask);
  Reg::Duplicate(constant, uint32_t(0x7F));
  Reg::Select(scale, constant, as<uint32_t>(code), spoilt);
  Reg::Duplicate(constant, kNan);
  Reg::Select(divisor, constant, divisor, spoilt);
}

// Scale bytes of a row, filled up to `stored` with ones, and the factors of its elements.
template <class Format>
__simd_vf__ inline void group_scales(Ub<uint32_t> sizes, Ub<uint8_t> bytes, Ub<float> factors,
                                     uint32_t count, uint32_t stored) {
  constexpr uint32_t kUnits = kEncodeUnits<Format>;
  Reg::RegTensor<uint32_t> size, scale, factor, one;
  Reg::MaskReg all = Reg::CreateMask<uint32_t>();
  Reg::Duplicate(one, kOne);
  const uint16_t parts = rows::rounds(stored);
  for (uint16_t i = 0; i < parts; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<uint32_t>(count);
    Reg::MaskReg kept = Reg::UpdateMask<uint32_t>(stored);
    Reg::LoadAlign(size, sizes + i * kStep);
    if constexpr (kIsMx<Format>)
      power_scales<Format>(scale, factor, size, mask);
    else
      e4m3_scales(scale, factor, size, mask);
    Reg::Select(scale, scale, one, mask);
    Reg::StoreAlign<uint8_t, Reg::StoreDist::DIST_PACK4_B32>(bytes + i * kStep, as<uint8_t>(scale),
                                                             kept);
    store_factors<kUnits>(factors + i * kStep * kUnits, as<float>(factor), all);
  }
}

// e2m1 codes, as uint32, to the nearest with ties to even; -0 becomes 0, NaN too.
//
// |x| * 2^-126 has the code in the three bits where exponent and mantissa of an f32 meet, the rest
// below them.
__simd_callee__ inline void e2m1_codes(Reg::RegTensor<uint32_t> &code, Reg::RegTensor<float> &value,
                                       Reg::MaskReg &mask) {
  Reg::RegTensor<uint32_t> odd, sign, constant;
  Reg::RegTensor<float> small;
  Reg::MaskReg chosen;
  Reg::Abs(small, value, mask);
  Reg::Muls(small, small, 0x1p-126f, mask);
  Reg::ShiftRights(odd, as<uint32_t>(small), int16_t(22), mask);
  Reg::Duplicate(constant, uint32_t(1));
  Reg::And(odd, odd, constant, mask);
  Reg::Add(code, as<uint32_t>(small), odd, mask);
  Reg::Adds(code, code, uint32_t(0x1FFFFF), mask);
  Reg::ShiftRights(code, code, int16_t(22), mask);
  Reg::Mins(code, code, uint32_t(7), mask);
  Reg::Duplicate(constant, uint32_t(0));
  Reg::Compare<float, CMPMODE::NE>(chosen, value, value, mask);
  Reg::Select(code, constant, code, chosen);
  Reg::ShiftRights(sign, as<uint32_t>(value), int16_t(31), mask);
  Reg::ShiftLefts(sign, sign, int16_t(3), mask);
  Reg::Compares<uint32_t, CMPMODE::NE>(chosen, code, uint32_t(0), mask);
  Reg::Select(sign, sign, constant, chosen);
  Reg::Or(code, code, sign, mask);
}

// Codes of a row: bytes of e4m3, or of two e2m1 with the even element in the low half.
template <class Format, class T>
__simd_vf__ inline void element_codes(Ub<T> row, Ub<float> factors, Ub<uint8_t> codes,
                                      uint32_t width) {
  Reg::RegTensor<float> value, factor;
  const uint16_t count = rows::rounds(width);
  uint32_t pairs = width / 2;
  for (uint16_t i = 0; i < count; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(width);
    rows::load(value, row + i * kStep, mask);
    Reg::LoadAlign<float, Reg::LoadDist::DIST_E2B_B32>(factor, factors + i * 8);
    if constexpr (kIsMx<Format>) {
      Reg::Mul(value, value, factor, mask);
    } else {
      Reg::Div(value, value, factor, mask);
      cut_error(value, mask);
    }
    if constexpr (kIsFp8<Format>) {
      Reg::RegTensor<fp8_e4m3fn_t> code;
      Reg::Cast<fp8_e4m3fn_t, float, kToFp8>(code, value, mask);
      Reg::StoreAlign<uint8_t, Reg::StoreDist::DIST_PACK4_B32>(codes + i * kStep, as<uint8_t>(code),
                                                               mask);
    } else {
      Reg::RegTensor<uint32_t> code, even, odd;
      uint32_t half = pairs < kStep / 2 ? pairs : kStep / 2;
      pairs -= half;
      Reg::MaskReg low = Reg::UpdateMask<uint32_t>(half);
      e2m1_codes(code, value, mask);
      Reg::DeInterleave(even, odd, code, code);
      Reg::ShiftLefts(odd, odd, int16_t(4), low);
      Reg::Or(even, even, odd, low);
      Reg::StoreAlign<uint8_t, Reg::StoreDist::DIST_PACK4_B32>(codes + i * kStep / 2,
                                                               as<uint8_t>(even), low);
    }
  }
}

// All of it, on PIPE_V, for a row of f32 or bf16 that lies in UB.
template <class Format, class T>
__aicore__ inline void encode_row(Ub<T> row, Ub<uint8_t> codes, Ub<uint8_t> scales,
                                  Ub<uint32_t> sizes, Ub<float> factors, uint32_t width) {
  asc_vf_call<group_sizes<Format, T>>(row, sizes, width);
  asc_vf_call<group_scales<Format>>(sizes, scales, factors, groups<Format>(width),
                                    scale_bytes<Format>(width));
  asc_vf_call<element_codes<Format, T>>(row, factors, codes, width);
}

}  // namespace codec

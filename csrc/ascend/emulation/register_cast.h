// Cast: conversions between element types of registers.
//
// Written from the pages "Cast", "RegLayout", "SatMode", "MaskReg" and "SetCtrlSpr". The pairs of
// types and what their traits may say are those of the documented tables; pairs with half,
// hifloat8_t, int4x2_t and fp4x2_e1m2_t are not modelled, nor is bfloat16_t to fp8_e8m0_t.
// Subnormal numbers are converted exactly.
#pragma once

#include "register_lanes.h"

namespace AscendC::Reg {

struct CastTrait {
  RegLayout layoutMode = RegLayout::UNKNOWN;
  SatMode satMode = SatMode::UNKNOWN;
  MaskMergeMode mrgMode = MaskMergeMode::UNKNOWN;
  RoundMode roundMode = RoundMode::UNKNOWN;
};

}  // namespace AscendC::Reg

namespace tandem::emulation {

using AscendC::RoundMode;
using AscendC::Reg::CastTrait;
using AscendC::Reg::RegLayout;
using AscendC::Reg::SatMode;

template <typename D, typename S, typename A, typename B>
inline constexpr bool kPair = std::is_same_v<D, A> && std::is_same_v<S, B>;

template <typename T>
inline constexpr bool kSmallFloat = kOneOf<T, fp8_e4m3fn_t, fp8_e5m2_t>;

// What a pair of types needs of its trait: a mode of saturation, a mode of rounding.
struct Needs {
  bool documented, saturation, rounding;
};

template <typename D, typename S>
constexpr Needs needs_of() {
  if (kPair<D, S, float, bfloat16_t> || kPair<D, S, bfloat16_t, fp8_e8m0_t> ||
      kPair<D, S, bfloat16_t, fp4x2_e2m1_t> || (kSmallFloat<S> && std::is_same_v<D, float>))
    return {true, false, false};
  if (kPair<D, S, fp4x2_e2m1_t, bfloat16_t>) return {true, false, true};
  if (kPair<D, S, bfloat16_t, float> || (kSmallFloat<D> && std::is_same_v<S, float>))
    return {true, true, true};
  if (kPair<D, S, int32_t, bfloat16_t> || kPair<D, S, int16_t, float> ||
      kPair<D, S, int32_t, float> || kPair<D, S, int64_t, float>)
    return {true, true, true};
  if (kPair<D, S, float, int16_t>) return {true, false, false};
  if (kPair<D, S, float, int32_t> || kPair<D, S, float, int64_t>) return {true, false, true};
  if (kPair<D, S, int16_t, int8_t> || kPair<D, S, int32_t, int8_t> ||
      kPair<D, S, uint16_t, uint8_t> || kPair<D, S, uint32_t, uint8_t> ||
      kPair<D, S, int32_t, int16_t> || kPair<D, S, uint32_t, int16_t> ||
      kPair<D, S, uint32_t, uint16_t> || kPair<D, S, int64_t, int32_t>)
    return {true, false, false};
  if (kPair<D, S, uint8_t, int16_t> || kPair<D, S, uint8_t, uint16_t> ||
      kPair<D, S, uint8_t, int32_t> || kPair<D, S, int16_t, int32_t> ||
      kPair<D, S, uint16_t, int32_t> || kPair<D, S, uint8_t, uint32_t> ||
      kPair<D, S, int16_t, uint32_t> || kPair<D, S, uint16_t, uint32_t> ||
      kPair<D, S, int32_t, int64_t>)
    return {true, true, false};
  return {false, false, false};
}

template <typename D, typename S, const CastTrait &trait>
constexpr void check_trait() {
  constexpr Needs kNeeds = needs_of<D, S>();
  static_assert(kNeeds.documented, "not a documented pair of types, or not modelled");
  static_assert(trait.mrgMode == MaskMergeMode::ZEROING,
                "Cast supports MaskMergeMode::ZEROING only");
  static_assert((trait.satMode != SatMode::UNKNOWN) == kNeeds.saturation,
                "this pair of types needs a SatMode, or supports only SatMode::UNKNOWN");
  static_assert((trait.roundMode != RoundMode::UNKNOWN) == kNeeds.rounding,
                "this pair of types needs a RoundMode, or supports only RoundMode::UNKNOWN");
  static_assert(!kSmallFloat<D> || trait.roundMode == RoundMode::CAST_RINT,
                "conversions to fp8 support only CAST_RINT");
  static_assert(
      !kNeeds.rounding || trait.roundMode == RoundMode::CAST_RINT ||
          (trait.roundMode >= RoundMode::CAST_FLOOR && trait.roundMode <= RoundMode::CAST_TRUNC),
      "supported are CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND and CAST_TRUNC");
  constexpr bool kPaired = kOneOf<D, fp4x2_e2m1_t> || kOneOf<S, fp4x2_e2m1_t>;
  constexpr int kRatio =
      kPaired ? 4 : int(sizeof(D) > sizeof(S) ? sizeof(D) / sizeof(S) : sizeof(S) / sizeof(D));
  static_assert(kRatio == 1 ? trait.layoutMode == RegLayout::UNKNOWN
                            : int(trait.layoutMode) >= 0 && int(trait.layoutMode) < kRatio,
                "types of one width need RegLayout::UNKNOWN, others one within the wider element");
}

// Whether a conversion saturates: by the control register, unless its bit 60 leaves it to the
// instruction.
bool saturates(SatMode mode, bool to_integer);
bool keeps_nan();

// x rounded to an integer, as a double.
double rounded(double x, RoundMode mode);

template <typename D, typename S>
D to_integer(S x, RoundMode mode, bool saturate) {
  constexpr double kLow = double(std::numeric_limits<D>::min());
  constexpr double kPastHigh =
      std::is_same_v<D, int64_t> ? 0x1p63 : double(std::numeric_limits<D>::max()) + 1;
  if (float(x) != float(x)) return 0;
  const double whole = rounded(double(float(x)), mode);
  if (whole >= kLow && whole < kPastHigh) return D(whole);
  if (saturate || std::isinf(whole))
    return whole < 0 ? std::numeric_limits<D>::min() : std::numeric_limits<D>::max();
  const double low_bits = std::fmod(whole, 0x1p64);
  return D(low_bits < 0 ? 0 - uint64_t(-low_bits) : uint64_t(low_bits));
}

// An integer as f32, rounded by mode.
float to_float(int64_t x, RoundMode mode);

// One number. `saturate` says what an overflow becomes.
template <typename D, typename S, const CastTrait &trait>
D converted(S x, bool saturate) {
  constexpr RoundMode kMode = trait.roundMode;
  if constexpr (kPair<D, S, float, bfloat16_t>)
    return float(x);
  else if constexpr (kPair<D, S, bfloat16_t, fp8_e8m0_t>)
    return bfloat16_t(x.bits == 0xFF ? std::numeric_limits<float>::quiet_NaN()
                                     : std::ldexp(1.0f, x.bits - 127));
  else if constexpr (kPair<D, S, float, fp8_e4m3fn_t>)
    return float(decode(kE4m3, x.bits));
  else if constexpr (kPair<D, S, float, fp8_e5m2_t>)
    return float(decode(kE5m2, x.bits));
  else if constexpr (kPair<D, S, bfloat16_t, float>) {
    D result;
    result.bits = uint16_t(encode(kBfloat16, x, kMode, saturate));
    return result;
  } else if constexpr (kSmallFloat<D>)
    return {uint8_t(
        encode(std::is_same_v<D, fp8_e5m2_t> ? kE5m2 : kE4m3, x, kMode, saturate, keeps_nan()))};
  else if constexpr (Integer<D> && Real<S>)
    return to_integer<D>(x, kMode, saturate);
  else if constexpr (kPair<D, S, float, int16_t>)
    return float(x);
  else if constexpr (std::is_same_v<D, float>)
    return to_float(x, kMode);
  else if constexpr (kPair<D, S, uint32_t, int16_t>)
    return x < 0 ? 0 : uint32_t(x);
  else if (saturate && sizeof(D) < sizeof(S)) {
    if (int64_t(x) < int64_t(std::numeric_limits<D>::min())) return std::numeric_limits<D>::min();
    return int64_t(x) > int64_t(std::numeric_limits<D>::max()) ? std::numeric_limits<D>::max()
                                                               : D(x);
  } else
    return D(x);
}

// Bytes of the source that the mask selects among those that take part: those at `first`, then
// every `step` bytes.
inline ByteSet taking_part(const MaskReg &mask, int size, int first, int step) {
  ByteSet places = kNone, selected = kNone;
  for (int i = first; i < kRegisterBytes; i += step) put(places, i, true);
  if (!covers(mask.known, places))
    fail("uninitialised-mask", "make the mask for the type of the source",
         "Cast reads bits of a mask that were never set, or not for elements of its source");
  for (int i = first; i < kRegisterBytes; i += step)
    for (int byte = i; byte < i + size && has(mask.bits, i); ++byte) put(selected, byte, true);
  return selected;
}

template <typename D, typename S, const CastTrait &trait>
void cast(RegTensor<D> &dst, const RegTensor<S> &src, const MaskReg &mask) {
  constexpr int kFrom = sizeof(S), kTo = sizeof(D), kWide = kFrom > kTo ? kFrom : kTo;
  constexpr int kPart = kFrom == kTo ? 0 : int(trait.layoutMode);
  constexpr int kFirst = kFrom < kTo ? kPart * kFrom : 0;
  const ByteSet selected = taking_part(mask, kFrom, kFirst, kWide);
  require_known(src, selected, "Cast");
  const bool saturate = saturates(trait.satMode, Integer<D>);
  const auto lanes = lanes_of<S>(src);
  std::array<D, kLanes<D>> results;
  std::memset(static_cast<void *>(results.data()), 0, kRegisterBytes);
  for (int i = 0; i < kRegisterBytes / kWide; ++i) {
    if (!has(selected, i * kWide + kFirst)) continue;
    const S x = lanes[kFrom < kTo ? i * (kTo / kFrom) + kPart : i];
    results[kTo < kFrom ? i * (kFrom / kTo) + kPart : i] = converted<D, S, trait>(x, saturate);
  }
  set_lanes(dst, results);
}

// Two numbers of four bits a byte, with pairs of bfloat16_t; `part` is the byte of each four.
void cast_pairs(RegTensor<bfloat16_t> &dst, const RegTensor<fp4x2_e2m1_t> &src, const MaskReg &mask,
                int part);
void cast_pairs(RegTensor<fp4x2_e2m1_t> &dst, const RegTensor<bfloat16_t> &src, const MaskReg &mask,
                int part, RoundMode mode);

}  // namespace tandem::emulation

namespace AscendC::Reg {

template <typename T = DefaultType, typename U = DefaultType, const CastTrait &trait, typename D,
          typename S>
void Cast(RegTensor<D> &dst, RegTensor<S> &src, MaskReg &mask) {
  emulation::check_type<T, D>();
  emulation::check_type<U, S>();
  emulation::check_trait<D, S, trait>();
  emulation::vector_function.require("Cast");
  const emulation::Sources sources = src.sources;
  if constexpr (std::is_same_v<S, fp4x2_e2m1_t>)
    emulation::cast_pairs(dst, src, mask, int(trait.layoutMode));
  else if constexpr (std::is_same_v<D, fp4x2_e2m1_t>)
    emulation::cast_pairs(dst, src, mask, int(trait.layoutMode), trait.roundMode);
  else
    emulation::cast<D, S, trait>(dst, src, mask);
  dst.known = emulation::kAll;
  dst.sources = sources;
}

// Fractions cut off, in the same type.
template <typename T = DefaultType, RoundMode roundMode = RoundMode::CAST_NONE,
          MaskMergeMode mode = MaskMergeMode::ZEROING, typename E>
  requires emulation::Real<E>
void Truncate(RegTensor<E> &dst, RegTensor<E> &src, MaskReg &mask) {
  emulation::check_type<T, E>();
  static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");
  emulation::unary<mode>("Truncate", dst, src, mask, [](E a) {
    const double x = double(float(a));
    return E(std::isfinite(x) ? float(std::copysign(emulation::rounded(x, roundMode), x))
                              : float(a));
  });
}

}  // namespace AscendC::Reg

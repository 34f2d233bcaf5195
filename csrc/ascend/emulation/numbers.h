// The narrow number types of the device and their exact conversions.
//
// Written from the public documentation of Ascend C (pages "Cast", "RoundMode", "内置数据类型").
// Host emulation only.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace AscendC {

enum class RoundMode {
  CAST_NONE = 0,
  CAST_RINT,
  CAST_FLOOR,
  CAST_CEIL,
  CAST_ROUND,
  CAST_TRUNC,
  CAST_ODD,
  CAST_HYBRID,
  UNKNOWN = 0xFF,
};

}  // namespace AscendC

namespace tandem::emulation {

template <typename To, typename From>
inline To bit_cast(const From &from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// A binary format with a sign: fields of exponent and mantissa, and what its highest codes mean.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;  // the highest exponent holds infinity and NaN, as in IEEE 754
  bool has_nan;       // without infinity, one code (all ones) is NaN
};

inline constexpr Format kHalf{5, 10, true, true};
inline constexpr Format kBfloat16{8, 7, true, true};
inline constexpr Format kE4m3{4, 3, false, true};
inline constexpr Format kE5m2{5, 2, true, true};
inline constexpr Format kE2m1{2, 1, false, false};
inline constexpr Format kE1m2{1, 2, false, false};

constexpr int bias_of(Format f) { return (1 << (f.exponent_bits - 1)) - 1; }

constexpr uint32_t highest_code(Format f) {
  const uint32_t all = (1u << (f.exponent_bits + f.mantissa_bits)) - 1;
  if (f.has_infinity) return all - (1u << f.mantissa_bits);
  return f.has_nan ? all - 1 : all;
}

constexpr uint32_t nan_code(Format f) { return (1u << (f.exponent_bits + f.mantissa_bits)) - 1; }

constexpr uint32_t infinity_code(Format f) {
  return ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
}

inline double decode(Format f, uint32_t code) {
  const uint32_t magnitude = code & ((1u << (f.exponent_bits + f.mantissa_bits)) - 1);
  const double sign = (code >> (f.exponent_bits + f.mantissa_bits)) & 1 ? -1.0 : 1.0;
  if (magnitude > highest_code(f)) {
    const bool infinite = f.has_infinity && magnitude == infinity_code(f);
    return infinite ? sign * std::numeric_limits<double>::infinity()
                    : std::numeric_limits<double>::quiet_NaN();
  }
  const int exponent = int(magnitude >> f.mantissa_bits);
  const int fraction = int(magnitude & ((1u << f.mantissa_bits) - 1));
  const int smallest = 1 - bias_of(f) - f.mantissa_bits;
  if (exponent == 0) return sign * std::ldexp(fraction, smallest);
  return sign * std::ldexp(fraction + (1 << f.mantissa_bits), smallest + exponent - 1);
}

// Whether a magnitude cut to `kept` (an integer) with the rest `left` in [0, 1) goes up by one.
inline bool rounds_up(AscendC::RoundMode mode, bool negative, bool odd, double left) {
  switch (mode) {
    case AscendC::RoundMode::CAST_FLOOR:
      return negative && left > 0;
    case AscendC::RoundMode::CAST_CEIL:
      return !negative && left > 0;
    case AscendC::RoundMode::CAST_ROUND:
      return left >= 0.5;
    case AscendC::RoundMode::CAST_TRUNC:
      return false;
    case AscendC::RoundMode::CAST_ODD:
      return left > 0 && !odd;
    default:
      return left > 0.5 || (left == 0.5 && odd);
  }
}

// A finite or infinite number, or NaN, as a code. Saturating: what is too large becomes the largest
// finite number and NaN becomes +0, or stays where `keeps_nan`. Formats without infinity and NaN
// always saturate.
inline uint32_t encode(Format f, double x, AscendC::RoundMode mode, bool saturate,
                       bool keeps_nan = false) {
  const uint32_t sign = std::signbit(x) ? 1u << (f.exponent_bits + f.mantissa_bits) : 0;
  if (std::isnan(x)) return f.has_nan && (!saturate || keeps_nan) ? nan_code(f) : 0;
  const uint32_t top = highest_code(f);
  uint32_t too_large = top;
  if (!saturate && f.has_infinity) too_large = infinity_code(f);
  if (!saturate && !f.has_infinity && f.has_nan) too_large = nan_code(f);
  if (std::isinf(x)) return sign | too_large;
  if (x == 0) return sign;
  const int lowest = 1 - bias_of(f);
  const int exponent = std::max(std::ilogb(x), lowest);
  const double scaled = std::ldexp(std::fabs(x), f.mantissa_bits - exponent);
  const double kept = std::floor(scaled);
  uint64_t code = uint64_t(kept);
  if (rounds_up(mode, sign != 0, code & 1, scaled - kept)) ++code;
  // Codes of one sign are in the order of their values, so a carry moves into the exponent.
  code += uint64_t(exponent - lowest) << f.mantissa_bits;
  return sign | (code > top ? too_large : uint32_t(code));
}

inline float widen_bfloat16(uint16_t bits) { return bit_cast<float>(uint32_t(bits) << 16); }

// f32 to bf16 to the nearest, ties to even; infinities and NaN stay.
inline uint16_t narrow_to_bfloat16(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  if (x != x) return 0x7FFF;
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

}  // namespace tandem::emulation

// Storage with the names of the device's types. Arithmetic goes through float, with one rounding to
// the nearest, as documented for bfloat16_t.
struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  bfloat16_t(float x) : bits(tandem::emulation::narrow_to_bfloat16(x)) {}
  operator float() const { return tandem::emulation::widen_bfloat16(bits); }
};

struct half {
  uint16_t bits;
  half() = default;
  half(float x)
      : bits(uint16_t(tandem::emulation::encode(tandem::emulation::kHalf, x,
                                                AscendC::RoundMode::CAST_RINT, false))) {}
  operator float() const {
    return float(tandem::emulation::decode(tandem::emulation::kHalf, bits));
  }
};

struct fp8_e4m3fn_t {
  uint8_t bits;
};
struct fp8_e5m2_t {
  uint8_t bits;
};
struct fp8_e8m0_t {  // 2^(bits - 127); 255 is NaN
  uint8_t bits;
};
struct fp4x2_e2m1_t {  // two numbers, the first in the low half
  uint8_t bits;
};
struct fp4x2_e1m2_t {
  uint8_t bits;
};
struct int4x2_t {
  uint8_t bits;
};

// Storage types of the device, with exact conversions: round to nearest, ties to even, unless asked
// otherwise.
#pragma once

#include <cstdint>
#include <cstring>

namespace tandem::emulation {

// A binary float of at most 16 bits. Codes above `largest` are infinity (where there is one) and
// NaN.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  uint32_t largest;  // code of the largest finite number
  bool infinity;     // the code after it is infinity; else all after it are NaN
  uint32_t nan;      // code of a NaN, 0 where there is none
  constexpr int bits() const { return 1 + exponent_bits + mantissa_bits; }
};

constexpr Format kHalf{5, 10, 15, 0x7BFF, true, 0x7E00};
constexpr Format kBfloat16{8, 7, 127, 0x7F7F, true, 0x7FC0};
constexpr Format kE4m3{4, 3, 7, 0x7E, false, 0x7F};
constexpr Format kE5m2{5, 2, 15, 0x7B, true, 0x7F};
constexpr Format kE2m1{2, 1, 1, 0x7, false, 0};
constexpr Format kE1m2{1, 2, 1, 0x7, false, 0};

enum class Rounding : uint8_t { nearest_even, floor, ceil, nearest_away, truncate, odd };

// The value of a code, exactly.
float decode(const Format &format, uint32_t code);
// The code of a value. Beyond the largest number: the largest where `saturate`, else infinity, else
// NaN.
uint32_t encode(const Format &format, float value, Rounding rounding, bool saturate);

inline float bfloat16_value(uint16_t code) {
  const uint32_t wide = static_cast<uint32_t>(code) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Round to nearest even; infinity beyond the range.
inline uint16_t bfloat16_code(float value) {
  uint32_t wide;
  std::memcpy(&wide, &value, sizeof wide);
  if ((wide & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((wide >> 16) | 0x40);
  return static_cast<uint16_t>((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16);
}

}  // namespace tandem::emulation

struct bfloat16_t {
  uint16_t code;
  bfloat16_t() = default;
  explicit bfloat16_t(float value) : code(tandem::emulation::bfloat16_code(value)) {}
  explicit operator float() const { return tandem::emulation::bfloat16_value(code); }
};

struct half {
  uint16_t code;
  half() = default;
  half(float value);
  explicit operator float() const {
    return tandem::emulation::decode(tandem::emulation::kHalf, code);
  }
};

inline half::half(float value)
    : code(static_cast<uint16_t>(tandem::emulation::encode(
          tandem::emulation::kHalf, value, tandem::emulation::Rounding::nearest_even, false))) {}

// Formats of a byte: stored, and converted by Cast only. fp4x2: the element of even index in the
// low half.
struct fp8_e4m3fn_t {
  uint8_t code;
};
struct fp8_e5m2_t {
  uint8_t code;
};
struct fp8_e8m0_t {
  uint8_t code;
};
struct fp4x2_e2m1_t {
  uint8_t code;
};
struct fp4x2_e1m2_t {
  uint8_t code;
};

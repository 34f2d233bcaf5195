// The small number formats of tandem.h: codes to values and back, and the scales of groups.
//
// The maximum of a group is taken over the bit patterns of |x|, which order like the values, put
// infinity above every number and NaN above infinity, and need no floating-point reduction.
#pragma once

#include <cstdint>
#include <cstring>

#include "packing.h"
#include "registers.h"
#include "tandem.h"

namespace tandem::TANDEM_ISA {

constexpr uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u, kNaN = 0x7fc00000u;
constexpr uint8_t kE4m3NaN = 0x7f, kUe8m0NaN = 0xff;
constexpr float kE4m3Max = 448.0f;

TANDEM_INLINE float decode_ue8m0(uint32_t code) {
  return float_of(code == 0 ? 0x400000u : code == 255 ? kNaN : code << 23);
}

// v rounded to the e4m3 grid, as a code; NaN must be handled before. Normal values round in the
// integer domain; subnormal ones by adding 2^14, whose last mantissa bit is the grid step 2^-9.
TANDEM_INLINE uint32_t encode_e4m3(float v) {
  const uint32_t sign = (bits_of(v) >> 24) & 0x80u;
  const float magnitude = float_of(bits_of(v) & kMagnitude);
  const float a = magnitude < kE4m3Max ? magnitude : kE4m3Max;
  const uint32_t b = bits_of(a);
  const uint32_t normal = ((b + 0x7ffffu + ((b >> 20) & 1u)) >> 20) - (120u << 3);
  const uint32_t subnormal = bits_of(a + 16384.0f) - bits_of(16384.0f);
  return sign | (a < 0.015625f ? subnormal : normal);
}

TANDEM_INLINE float decode_e4m3(uint32_t code) {
  const uint32_t e = (code >> 3) & 15u, m = code & 7u;
  const float a = e ? float_of(((e + 120u) << 23) | (m << 20)) : static_cast<float>(m) * 0x1p-9f;
  const uint32_t bits = (code & 0x7fu) == 0x7fu ? kNaN : bits_of(a);
  return float_of(bits | ((code & 0x80u) << 24));
}

TANDEM_INLINE float decode_e2m1(uint32_t code) {
  constexpr float kValues[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return float_of(bits_of(kValues[code & 7u]) | ((code & 8u) << 28));
}

// Byte of the least power of two s with a <= full * s, where full is 2^FullExp times the float
// with mantissa bits FullMantissa. Exact for every finite a, so no rounding of a / full can matter.
template <int FullExp, uint32_t FullMantissa>
TANDEM_INLINE uint8_t power_scale(uint32_t a) {
  const uint32_t above = (a & 0x7fffffu) > FullMantissa ? 1 : 0;
  return static_cast<uint8_t>(a == kInfinity ? 254u : (a >> 23) - FullExp + above);
}

// 1 / s of a power-of-two scale byte 1 .. 254; that of 254 is the subnormal 2^-127.
TANDEM_INLINE float inverse_of(uint8_t scale) {
  return float_of(scale == 254 ? 0x400000u : (254u - scale) << 23);
}

// ---- groups, in registers -------------------------------------------------------------------

constexpr int kPer32 = 32 / kRegister, kPer16 = 16 / kRegister;  // registers of a group

template <int N, typename X>
TANDEM_INLINE void load_group(const X *x, Register *v) {
  unrolled<N>([&](auto i) TANDEM_BODY { v[i] = load_register(x + i() * kRegister); });
}

// The largest |v| of N registers, as bits.
template <int N>
TANDEM_INLINE uint32_t max_magnitude(const Register *v) {
  const auto magnitude = [&](int i) TANDEM_BODY { return (RegisterI32)v[i] & 0x7fffffff; };
  RegisterI32 most = magnitude(0);
  unrolled<N - 1>([&](auto i) TANDEM_BODY {
    const RegisterI32 next = magnitude(i() + 1);
    most = next > most ? next : most;
  });
  return static_cast<uint32_t>(lanes_max(most));
}

// e4m3 codes, in lanes.
TANDEM_INLINE RegisterU32 encode_e4m3(const Register &v) {
  const RegisterU32 bits = (RegisterU32)v, sign = (bits >> 24) & 0x80u;
  const RegisterI32 top = RegisterI32{} + static_cast<int32_t>(bits_of(kE4m3Max));
  const RegisterI32 magnitude = (RegisterI32)(bits & kMagnitude);
  const RegisterI32 bounded = magnitude > top ? top : magnitude;
  const RegisterU32 b = (RegisterU32)bounded;
  const RegisterU32 normal = ((b + 0x7ffffu + ((b >> 20) & 1u)) >> 20) - (120u << 3);
  const RegisterU32 subnormal = (RegisterU32)((Register)b + 16384.0f) - bits_of(16384.0f);
  return sign | (bounded < static_cast<int32_t>(bits_of(0.015625f)) ? subnormal : normal);
}

// e2m1 codes, in lanes. As with e4m3, values from 1 on round in the integer domain, smaller ones by
// adding 2^22, whose last mantissa bit is the grid step 2^-1. NaN must be handled before.
TANDEM_INLINE RegisterU32 encode_e2m1(const Register &v) {
  const RegisterU32 bits = (RegisterU32)v;
  const RegisterI32 top = RegisterI32{} + static_cast<int32_t>(bits_of(6.0f));
  const RegisterI32 magnitude = (RegisterI32)(bits & kMagnitude);
  const RegisterI32 bounded = magnitude > top ? top : magnitude;
  const RegisterU32 b = (RegisterU32)bounded;
  const RegisterU32 normal = ((b + 0x1fffffu + ((b >> 22) & 1u)) >> 22) - (126u << 1);
  const RegisterU32 subnormal = (RegisterU32)((Register)b + 0x1p22f) - bits_of(0x1p22f);
  const RegisterU32 code = bounded < static_cast<int32_t>(bits_of(1.0f)) ? subnormal : normal;
  const RegisterU32 sign = (bits >> 28) & 8u;
  return code | (sign & (RegisterU32)((RegisterI32)code > 0));
}

// The 32 codes of a group; returns its scale.
TANDEM_INLINE uint8_t encode_mxfp8_group(const Register *v, uint8_t *codes) {
  const uint32_t top = max_magnitude<kPer32>(v), floor = bits_of(1e-4f);
  if (top > kInfinity) {
    std::memset(codes, kE4m3NaN, 32);
    return kUe8m0NaN;
  }
  const uint8_t scale = power_scale<8, 0x600000u>(top > floor ? top : floor);  // 448 = 1.75 * 2^8
  const float inverse = inverse_of(scale);
  RegisterU32 lanes[kPer32];
  unrolled<kPer32>([&](auto i) TANDEM_BODY { lanes[i] = encode_e4m3(v[i] * inverse); });
  store_bytes<kPer32>(codes, lanes);
  return scale;
}

// e4m3 codes of n values (a multiple of 32), a ue8m0 scale for every 32.
//
// With a = max(max|x|, 1e-4) over the group, the scale is the least power of two s with a <= 448 s.
// The code is e4m3(x / s); the sign of zero is kept. A group that holds a NaN becomes 32 codes 0x7f
// and scale 255.
template <typename X>
TANDEM_INLINE void encode_mxfp8(const X *x, int64_t n, uint8_t *codes, uint8_t *scales) {
  for (int64_t g = 0; g < n / 32; ++g) {
    Register v[kPer32];
    load_group<kPer32>(x + 32 * g, v);
    scales[g] = encode_mxfp8_group(v, codes + 32 * g);
  }
}

// e2m1 codes of n values (a multiple of 32), two a byte, a ue8m0 scale for every 32.
//
// With a = max(max|x|, 6 * 2^-126) over the group, the scale is the least power of two s with
// a <= 6 s. The code is e2m1(x / s). A group that holds a NaN becomes codes 0 and scale 255.
template <typename X>
TANDEM_INLINE void encode_mxfp4(const X *x, int64_t n, uint8_t *packed, uint8_t *scales) {
  for (int64_t g = 0; g < n / 32; ++g, x += 32, packed += 16) {
    Register v[kPer32];
    load_group<kPer32>(x, v);
    const uint32_t top = max_magnitude<kPer32>(v), floor = bits_of(6.0f * 0x1p-126f);
    if (top > kInfinity) {
      std::memset(packed, 0, 16);
      scales[g] = kUe8m0NaN;
      continue;
    }
    scales[g] = power_scale<2, 0x400000u>(top > floor ? top : floor);  // 6 = 1.5 * 2^2
    const float inverse = inverse_of(scales[g]);
    RegisterU32 lanes[kPer32];
    unrolled<kPer32>([&](auto i) TANDEM_BODY { lanes[i] = encode_e2m1(v[i] * inverse); });
    store_nibbles<kPer32>(packed, lanes);
  }
}

// e2m1 codes of n values (a multiple of 16), two a byte, an e4m3 scale for every 16.
//
// With a = max(max|x|, 6 * 2^-9) over the group, the scale is s = e4m3(min(a / 6, 448)) and the
// code e2m1(x / s) with that rounded s; both divisions are true f32 divisions. A group that holds a
// NaN becomes codes 0 and scale 0x7f.
template <typename X>
TANDEM_INLINE void encode_nvfp4(const X *x, int64_t n, uint8_t *packed, uint8_t *scales) {
  for (int64_t g = 0; g < n / 16; ++g, x += 16, packed += 8) {
    Register v[kPer16];
    load_group<kPer16>(x, v);
    const uint32_t top = max_magnitude<kPer16>(v), floor = bits_of(6.0f * 0x1p-9f);
    if (top > kInfinity) {
      std::memset(packed, 0, 8);
      scales[g] = kE4m3NaN;
      continue;
    }
    const uint32_t scale = encode_e4m3(float_of(top > floor ? top : floor) / 6.0f);
    const float divisor = decode_e4m3(scale);
    RegisterU32 lanes[kPer16];
    unrolled<kPer16>([&](auto i) TANDEM_BODY { lanes[i] = encode_e2m1(v[i] / divisor); });
    store_nibbles<kPer16>(packed, lanes);
    scales[g] = static_cast<uint8_t>(scale);
  }
}

// Bytes of codes and of scales of a row of n in a format (TANDEM_MXFP8, _MXFP4 or _NVFP4); 0 of
// another format or where n is not whole groups.
TANDEM_INLINE int64_t group_of(int64_t format) {
  return format == TANDEM_MXFP8 || format == TANDEM_MXFP4 ? 32 : format == TANDEM_NVFP4 ? 16 : 0;
}

TANDEM_INLINE int64_t code_bytes(int64_t format, int64_t n) {
  return format == TANDEM_MXFP8 ? n : n / 2;
}

template <typename X>
TANDEM_INLINE void encode_row(int64_t format, const X *x, int64_t n, uint8_t *codes,
                              uint8_t *scales) {
  if (format == TANDEM_MXFP8)
    encode_mxfp8(x, n, codes, scales);
  else if (format == TANDEM_MXFP4)
    encode_mxfp4(x, n, codes, scales);
  else
    encode_nvfp4(x, n, codes, scales);
}

// The values, f32, of a row of n: each exactly code times scale.
TANDEM_INLINE void decode_row(int64_t format, const uint8_t *codes, const uint8_t *scales,
                              int64_t n, float *values) {
  if (format == TANDEM_MXFP8) {
    for (int64_t g = 0; g < n / 32; ++g) {
      const float scale = decode_ue8m0(scales[g]);
      for (int i = 0; i < 32; ++i) values[g * 32 + i] = decode_e4m3(codes[g * 32 + i]) * scale;
    }
    return;
  }
  const int64_t group = group_of(format);
  for (int64_t g = 0; g < n / group; ++g) {
    const float scale = format == TANDEM_NVFP4 ? decode_e4m3(scales[g]) : decode_ue8m0(scales[g]);
    const uint8_t *packed = codes + g * group / 2;
    float *out = values + g * group;
    for (int64_t i = 0; i < group / 2; ++i) {
      out[2 * i] = decode_e2m1(packed[i] & 15u) * scale;
      out[2 * i + 1] = decode_e2m1(packed[i] >> 4) * scale;
    }
  }
}

}  // namespace tandem::TANDEM_ISA

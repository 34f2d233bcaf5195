// Group quantisers of activations and cache rows. See tandem.h for the rules.
//
// The maximum of a group is taken over the bit patterns of |x|, which order like the values, put
// infinity above every number and NaN above infinity, and need no floating-point reduction.
#include "common.h"
#include "kernels.h"
#include "parallel.h"

namespace tandem {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u, kNaN = 0x7fc00000u;
constexpr uint8_t kE4m3NaN = 0x7f, kUe8m0NaN = 0xff;
constexpr float kE4m3Max = 448.0f;

struct Call {
  const void *x;
  int64_t n;
  uint8_t *codes, *scales;
  float *values;
};

TANDEM_INLINE float widen(float v) { return v; }
TANDEM_INLINE float widen(uint16_t v) { return float_of(static_cast<uint32_t>(v) << 16); }

template <int G, typename X>
TANDEM_INLINE uint32_t max_magnitude(const X *x) {
  uint32_t top = 0;
  for (int i = 0; i < G; ++i) {
    const uint32_t b = bits_of(widen(x[i])) & kMagnitude;
    top = b > top ? b : top;
  }
  return top;
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

TANDEM_INLINE float saturate(float magnitude, float limit) {
  return magnitude < limit ? magnitude : limit;
}

// v rounded to the e4m3 grid, as a code. Normal values round in the integer domain; subnormal
// ones by adding 2^14, whose last mantissa bit is the grid step 2^-9.
TANDEM_INLINE uint32_t encode_e4m3(float v) {
  const uint32_t sign = (bits_of(v) >> 24) & 0x80u;
  const float a = saturate(float_of(bits_of(v) & kMagnitude), kE4m3Max);
  const uint32_t b = bits_of(a);
  const uint32_t normal = ((b + 0x7ffffu + ((b >> 20) & 1u)) >> 20) - (120u << 3);
  const uint32_t subnormal = bits_of(a + 16384.0f) - bits_of(16384.0f);
  return sign | (a < 0.015625f ? subnormal : normal);
}

TANDEM_INLINE float decode_e4m3(uint32_t code) {
  const uint32_t e = (code >> 3) & 15u, m = code & 7u;
  const float a = e ? float_of(((e + 120u) << 23) | (m << 20)) : static_cast<float>(m) * 0x1p-9f;
  return float_of(bits_of(a) | ((code & 0x80u) << 24));
}

// Ties go to the even code: the comparisons below alternate between > and >=.
TANDEM_INLINE uint32_t encode_e2m1(float v) {
  const float a = float_of(bits_of(v) & kMagnitude);
  const uint32_t code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                        (a >= 3.5f) + (a > 5.0f);
  return code ? code | ((bits_of(v) >> 28) & 8u) : 0u;
}

// Scale byte of a fp8 group whose largest magnitude has the bits `top`.
TANDEM_INLINE uint8_t fp8_scale(uint32_t top) {
  const uint32_t floor = bits_of(1e-4f);
  return power_scale<8, 0x600000u>(top > floor ? top : floor);  // 448 = 1.75 * 2^8
}

template <typename X>
TANDEM_INLINE void fp8_rows(const Call &call, int64_t begin, int64_t end) {
  const X *x = static_cast<const X *>(call.x);
  for (int64_t g = begin * call.n / 32; g < end * call.n / 32; ++g) {
    const uint32_t top = max_magnitude<32>(x + g * 32);
    uint8_t *codes = call.codes + g * 32;
    if (top > kInfinity) {
      std::memset(codes, kE4m3NaN, 32);
      call.scales[g] = kUe8m0NaN;
      continue;
    }
    const uint8_t scale = fp8_scale(top);
    const float inverse = inverse_of(scale);
    for (int i = 0; i < 32; ++i)
      codes[i] = static_cast<uint8_t>(encode_e4m3(widen(x[g * 32 + i]) * inverse));
    call.scales[g] = scale;
  }
}

template <typename X>
TANDEM_INLINE void fake_fp8_rows(const Call &call, int64_t begin, int64_t end) {
  const X *x = static_cast<const X *>(call.x);
  for (int64_t g = begin * call.n / 32; g < end * call.n / 32; ++g) {
    const uint32_t top = max_magnitude<32>(x + g * 32);
    float *y = call.values + g * 32;
    if (top > kInfinity) {
      for (int i = 0; i < 32; ++i) y[i] = float_of(kNaN);
      call.scales[g] = kUe8m0NaN;
      continue;
    }
    const uint8_t scale = fp8_scale(top);
    const float inverse = inverse_of(scale), step = float_of(static_cast<uint32_t>(scale) << 23);
    for (int i = 0; i < 32; ++i)
      y[i] = decode_e4m3(encode_e4m3(widen(x[g * 32 + i]) * inverse)) * step;
    call.scales[g] = scale;
  }
}

// Packs G codes of x / divisor, or of x * inverse, two a byte.
template <int G, typename Scaled>
TANDEM_INLINE void pack_e2m1(const uint16_t *x, uint8_t *packed, Scaled scaled) {
  uint8_t codes[G];
  for (int i = 0; i < G; ++i) codes[i] = static_cast<uint8_t>(encode_e2m1(scaled(widen(x[i]))));
  for (int i = 0; i < G / 2; ++i)
    packed[i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
}

TANDEM_CLONES void fp8_bf16_range(const void *ctx, int64_t begin, int64_t end) {
  fp8_rows<uint16_t>(*static_cast<const Call *>(ctx), begin, end);
}

TANDEM_CLONES void fp8_f32_range(const void *ctx, int64_t begin, int64_t end) {
  fp8_rows<float>(*static_cast<const Call *>(ctx), begin, end);
}

TANDEM_CLONES void fake_fp8_bf16_range(const void *ctx, int64_t begin, int64_t end) {
  fake_fp8_rows<uint16_t>(*static_cast<const Call *>(ctx), begin, end);
}

TANDEM_CLONES void fake_fp8_f32_range(const void *ctx, int64_t begin, int64_t end) {
  fake_fp8_rows<float>(*static_cast<const Call *>(ctx), begin, end);
}

TANDEM_CLONES void fp4_range(const void *ctx, int64_t begin, int64_t end) {
  const Call &call = *static_cast<const Call *>(ctx);
  const uint16_t *x = static_cast<const uint16_t *>(call.x);
  const uint32_t floor = bits_of(6.0f * 0x1p-126f);
  for (int64_t g = begin * call.n / 32; g < end * call.n / 32; ++g) {
    const uint32_t top = max_magnitude<32>(x + g * 32);
    uint8_t *packed = call.codes + g * 16;
    if (top > kInfinity) {
      std::memset(packed, 0, 16);
      call.scales[g] = kUe8m0NaN;
      continue;
    }
    // 6 = 1.5 * 2^2
    const uint8_t scale = power_scale<2, 0x400000u>(top > floor ? top : floor);
    const float inverse = inverse_of(scale);
    pack_e2m1<32>(x + g * 32, packed, [inverse](float v) { return v * inverse; });
    call.scales[g] = scale;
  }
}

TANDEM_CLONES void nvfp4_range(const void *ctx, int64_t begin, int64_t end) {
  const Call &call = *static_cast<const Call *>(ctx);
  const uint16_t *x = static_cast<const uint16_t *>(call.x);
  const uint32_t floor = bits_of(6.0f * 0x1p-9f);
  for (int64_t g = begin * call.n / 16; g < end * call.n / 16; ++g) {
    const uint32_t top = max_magnitude<16>(x + g * 16);
    uint8_t *packed = call.codes + g * 8;
    if (top > kInfinity) {
      std::memset(packed, 0, 8);
      call.scales[g] = kE4m3NaN;
      continue;
    }
    const uint32_t scale = encode_e4m3(float_of(top > floor ? top : floor) / 6.0f);
    const float divisor = decode_e4m3(scale);
    pack_e2m1<16>(x + g * 16, packed, [divisor](float v) { return v / divisor; });
    call.scales[g] = static_cast<uint8_t>(scale);
  }
}

int32_t check_shape(int64_t T, int64_t N, int64_t group) {
  return T < 0 || N < group || N % group != 0 ? TANDEM_BAD_SHAPE : TANDEM_OK;
}

int32_t check_input(const void *x, int32_t x_dtype) {
  if (x_dtype == TANDEM_BF16) return check_pointers(static_cast<const uint16_t *>(x));
  if (x_dtype == TANDEM_F32) return check_pointers(static_cast<const float *>(x));
  return TANDEM_BAD_VALUE;
}

}  // namespace

int32_t quantize_fp8_g32(const void *x, int32_t x_dtype, int64_t T, int64_t N, uint8_t *codes,
                         uint8_t *scales) {
  if (int32_t status = check_shape(T, N, 32)) return status;
  if (T == 0) return TANDEM_OK;
  if (int32_t status = check_input(x, x_dtype)) return status;
  if (int32_t status = check_pointers(codes, scales)) return status;
  const Call call{x, N, codes, scales, nullptr};
  for_rows(T, N, x_dtype == TANDEM_BF16 ? fp8_bf16_range : fp8_f32_range, &call);
  return TANDEM_OK;
}

int32_t fake_quant_fp8_g32(const void *x, int32_t x_dtype, int64_t T, int64_t N, float *y,
                           uint8_t *scales) {
  if (int32_t status = check_shape(T, N, 32)) return status;
  if (T == 0) return TANDEM_OK;
  if (int32_t status = check_input(x, x_dtype)) return status;
  if (int32_t status = check_pointers(y, scales)) return status;
  const Call call{x, N, nullptr, scales, y};
  for_rows(T, N, x_dtype == TANDEM_BF16 ? fake_fp8_bf16_range : fake_fp8_f32_range, &call);
  return TANDEM_OK;
}

int32_t quantize_fp4_g32(const uint16_t *x, int64_t T, int64_t N, uint8_t *packed,
                         uint8_t *scales) {
  if (int32_t status = check_shape(T, N, 32)) return status;
  if (T == 0) return TANDEM_OK;
  if (int32_t status = check_pointers(x, packed, scales)) return status;
  const Call call{x, N, packed, scales, nullptr};
  for_rows(T, N, fp4_range, &call);
  return TANDEM_OK;
}

int32_t quantize_nvfp4_g16(const uint16_t *x, int64_t T, int64_t N, uint8_t *packed,
                           uint8_t *scales) {
  if (int32_t status = check_shape(T, N, 16)) return status;
  if (T == 0) return TANDEM_OK;
  if (int32_t status = check_pointers(x, packed, scales)) return status;
  const Call call{x, N, packed, scales, nullptr};
  for_rows(T, N, nvfp4_range, &call);
  return TANDEM_OK;
}

}  // namespace tandem

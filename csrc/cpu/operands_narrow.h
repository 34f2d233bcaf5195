// Operands of matrix products where a register holds fewer than 16 lanes; their order stands in
// operands.h.
//
// Part p of a row has lanes p * kRegister and on of all of its steps: of each step the odd values,
// then the even ones. The parts of a row follow each other, so that whoever works on one part of
// many rows reads memory in order.
#pragma once

#include <cstdint>
#include <cstring>

#include "operands.h"
#include "register_codes.h"
#include "registers.h"

namespace tandem::TANDEM_ISA {

constexpr int kPartStep = 2 * kRegister;  // values of a step in a part

typedef uint16_t RegisterU16 __attribute__((vector_size(2 * kRegister * sizeof(uint16_t))));

// ---- codes in twice as many lanes -----------------------------------------------------------

// Half-precision numbers hold the values of all codes, but for a power of two, and are made by a
// few operations on integers. They are widened without regard to how a process treats subnormal
// numbers.
#if defined(__F16C__) || defined(__ARM_NEON)
constexpr float kFp8Factor = 0x1p8f;

TANDEM_INLINE void widen_halves(const RegisterU16 &v, Register *two) {
#if defined(__ARM_NEON)
  const float16x8_t halves = vreinterpretq_f16_u16((uint16x8_t)v);
  two[0] = (Register)vcvt_f32_f16(vget_low_f16(halves));
  two[1] = (Register)vcvt_high_f32_f16(halves);
#else
  two[0] = (Register)_mm256_cvtph_ps(_mm256_castsi256_si128((__m256i)v));
  two[1] = (Register)_mm256_cvtph_ps(_mm256_extracti128_si256((__m256i)v, 1));
#endif
}

// Of e4m3 codes in the upper bytes of lanes.
TANDEM_INLINE RegisterU16 half_of_e4m3(const RegisterU16 &codes) {
  const RegisterU16 magnitude = (codes >> 1) & 0x3f80;
  return (codes & 0x8000) | magnitude | (RegisterU16)(magnitude == 0x3f80);
}

// emit(step, part, odd, even) for one step of codes.
template <typename Step, typename Emit>
TANDEM_INLINE void decode_fp8(const uint8_t *codes, Step step, const Register &scale,
                              const Emit &emit) {
  unrolled<kPartCount / 2>([&](auto i) TANDEM_BODY {
    const RegisterU16 pairs = load_whole<RegisterU16>(codes + i() * 2 * kPartStep);
    Register odd[2], even[2];
    widen_halves(half_of_e4m3(pairs), odd);
    widen_halves(half_of_e4m3(pairs << 8), even);
    emit(step, std::integral_constant<int, 2 * i()>{}, odd[0] * scale, even[0] * scale);
    emit(step, std::integral_constant<int, 2 * i() + 1>{}, odd[1] * scale, even[1] * scale);
  });
}
#else
constexpr float kFp8Factor = 1.0f;

template <typename Step, typename Emit>
TANDEM_INLINE void decode_fp8(const uint8_t *codes, Step step, const Register &scale,
                              const Emit &emit) {
  unrolled<kPartCount>([&](auto part) TANDEM_BODY {
    const RegisterU32 pairs =
        __builtin_convertvector(load_whole<RegisterHalf>(codes + part() * kPartStep), RegisterU32);
    emit(step, part, e4m3_values(pairs >> 8) * scale, e4m3_values(pairs & 0xffu) * scale);
  });
}
#endif

// ---- fp4 -----------------------------------------------------------------------------------

#if defined(__ARM_NEON)
constexpr float kFp4Factor = 0x1p14f;

// Half-precision numbers, 2^-14 times the values, of the codes in four bits of each lane.
template <int Shift>
TANDEM_INLINE RegisterU16 half_of_e2m1(const RegisterU16 &v) {
  const RegisterU16 top = v << (12 - Shift);
  return (top & 0x8000) | ((top >> 3) & 0x0e00);
}

template <typename Emit>
TANDEM_INLINE void decode_fp4(const uint8_t *codes, const float *scales, const Emit &emit) {
  unrolled<kPartCount / 2>([&](auto i) TANDEM_BODY {
    constexpr int kFirst = 2 * i();
    const auto low = load_whole<uint16x8_t>(codes + 32 * i());
    const auto high = load_whole<uint16x8_t>(codes + 32 * i() + 16);
    const RegisterU16 evens = (RegisterU16)vuzp1q_u16(low, high);
    const RegisterU16 odds = (RegisterU16)vuzp2q_u16(low, high);
    const Register scale[2] = {all_lanes(scales[kFirst]), all_lanes(scales[kFirst + 1])};
    unrolled<4>([&](auto step) TANDEM_BODY {
      Register odd[2], even[2];
      widen_halves(half_of_e2m1<4 * step()>(odds), odd);
      widen_halves(half_of_e2m1<4 * step()>(evens), even);
      emit(step, std::integral_constant<int, kFirst>{}, odd[0] * scale[0], even[0] * scale[0]);
      emit(step, std::integral_constant<int, kFirst + 1>{}, odd[1] * scale[1], even[1] * scale[1]);
    });
  });
}
#else
constexpr float kFp4Factor = 1.0f;

// Values of the codes in four bits of each lane.
template <int Shift>
TANDEM_INLINE Register e2m1_at(const RegisterU32 &words) {
  const RegisterU32 sign = (words << (28 - Shift)) & 0x80000000u;
#if defined(__AVX2__)
  const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  return (Register)((RegisterU32)_mm256_permutevar8x32_ps(table, (__m256i)(words >> Shift)) | sign);
#else
  // With the exponent in place 0 and 0.5 come out too large; with the next one and 1 taken away all
  // others do.
  const RegisterU32 bits = ((words >> Shift) & 7u) << 22;
  const Register normal = (Register)(bits + (126u << 23));
  const Register small = (Register)(bits + (127u << 23)) - 1.0f;
  return (Register)((RegisterU32)(small < normal ? small : normal) | sign);
#endif
}

// Of the groups of 32 elements, four lanes each, that a part of a chunk has.
TANDEM_INLINE Register part_scales(const float *scales, int part) {
#if defined(__AVX2__)
  return (Register)_mm256_set_m128(_mm_broadcast_ss(scales + 2 * part + 1),
                                   _mm_broadcast_ss(scales + 2 * part));
#else
  return all_lanes(scales[part]);
#endif
}

template <typename Emit>
TANDEM_INLINE void decode_fp4(const uint8_t *codes, const float *scales, const Emit &emit) {
  unrolled<kPartCount>([&](auto part) TANDEM_BODY {
    const RegisterU32 words = load_whole<RegisterU32>(codes + part() * sizeof(RegisterU32));
    const Register scale = part_scales(scales, part());
    unrolled<4>([&](auto step) TANDEM_BODY {
      constexpr int kShift = 4 * step();
      emit(step, part, e2m1_at<16 + kShift>(words) * scale, e2m1_at<kShift>(words) * scale);
    });
  });
}
#endif

// ---- chunks and their scales ----------------------------------------------------------------

// The scales of groups of 32 elements, made up to whole chunks, with what decoded values lack.
template <int64_t Format>
TANDEM_INLINE void spread_scales(const uint8_t *codes, int64_t count, float *scales) {
  constexpr float kFactor = Format == TANDEM_MXFP4 ? kFp4Factor : kFp8Factor;
  for (int64_t i = 0; i < count; ++i) scales[i] = weight_scale(codes[i]) * kFactor;
  for (; count % 4; ++count) scales[count] = 0.0f;
}

// emit(step, part, odd, even) for a chunk of a row of weights, of which `left` elements are in the
// row, times the scales of its four groups.
template <int64_t Format, typename Emit>
TANDEM_INLINE void decode_chunk(const uint8_t *codes, int64_t left, const float *scales,
                                const Emit &emit) {
  uint8_t room[kChunkBytes<Format>];
  const uint8_t *chunk =
      whole<kChunkBytes<Format>>(codes, left * kChunkBytes<Format> / kChunk, room);
  if constexpr (Format == TANDEM_MXFP4)
    decode_fp4(chunk, scales, emit);
  else
    unrolled<4>([&](auto step) TANDEM_BODY {
      if constexpr (Format == TANDEM_FP8_BLOCK32)
        decode_fp8(chunk + step() * kStep, step, all_lanes(scales[step()]), emit);
      else
        unrolled<kPartCount>([&](auto part) TANDEM_BODY {
          const auto words =
              load_whole<RegisterU32>(chunk + step() * 2 * kStep + part() * sizeof(RegisterU32));
          emit(step, part, (Register)(words & 0xffff0000u), (Register)(words << 16));
        });
    });
}

// ---- activations ----------------------------------------------------------------------------

// Values times a power of two; those below 2^-126 count as zero.
TANDEM_INLINE Register scaled(const Register &v, float factor) {
  const RegisterU32 bits = (RegisterU32)(v * factor);
  return (Register)(bits & (RegisterU32)((bits & kInfinity) != 0u));
}

// A chunk of a row of activations, bf16 or mxfp8, of which `left` elements are in the row.
TANDEM_INLINE void activation_chunk(int64_t format, const uint8_t *x, const uint8_t *scales,
                                    int64_t left, float *values) {
  uint8_t room[2 * kChunk];
  if (format == TANDEM_BF16) {
    const uint8_t *row = whole<2 * kChunk>(x, 2 * left, room);
    for (int64_t i = 0; i < kChunk; i += kRegister)
      store_register(values + i, load_register(reinterpret_cast<const uint16_t *>(row) + i));
    return;
  }
  const uint8_t *codes = whole<kChunk>(x, left, room);
  for (int64_t i = 0; i < kChunk; i += kRegister) {
    const float scale = i < left ? decode_ue8m0(scales[i / kStep]) : 0.0f;
    store_register(values + i, scaled(e4m3_values(load_bytes(codes + i)), scale));
  }
}

// A row of activations in the order of fp4 weights (chunks) or as they lie; `padded` values, whole
// chunks. Its parts are as much further from each other as rows are, so that they do not fall into
// the same sets of a cache.
TANDEM_INLINE void arrange(int64_t format, const void *x, const uint8_t *scales, int64_t K,
                           bool chunks, int64_t padded, Item *out) {
  const int64_t next_step = chunks ? 1 : kStep, next_lane = chunks ? 8 : 2, odd = chunks ? 4 : 1;
  for (int64_t k = 0; k < padded; k += kChunk) {
    float values[kChunk];
    const uint8_t *from = static_cast<const uint8_t *>(x) + (format == TANDEM_BF16 ? 2 * k : k);
    activation_chunk(format, from, scales ? scales + k / kStep : nullptr, K - k, values);
    for (int64_t part = 0; part < kPartCount; ++part) {
      Item *to = out + (part * (padded + kStep) + k) / kPartCount;
      for (int64_t s = 0; s < 4; ++s, to += kPartStep) {
        const float *first = values + s * next_step + part * kRegister * next_lane;
        for (int64_t l = 0; l < kRegister; ++l) {
          to[l] = first[l * next_lane + odd];
          to[kRegister + l] = first[l * next_lane];
        }
      }
    }
  }
}

}  // namespace tandem::TANDEM_ISA

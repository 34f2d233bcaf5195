// Operands of matrix products where a register holds 16 lanes; their order stands in operands.h.
//
// Where the processor multiplies bf16 a step is kept as bf16, elsewhere as f32; the values are the
// same.
#pragma once

#include <cstdint>
#include <cstring>

#include "dot.h"
#include "operands.h"
#include "registers.h"

namespace tandem::TANDEM_ISA {

#if defined(__AVX512BF16__)
typedef VecBf16 Step;

TANDEM_INLINE Step load_step(const Item *p) { return load_bf16(p); }
TANDEM_INLINE void store_step(Item *p, const Step &s) { std::memcpy(p, &s, sizeof s); }
TANDEM_INLINE Step step_of(const VecBf16 &v) { return v; }
TANDEM_INLINE Step step_of(const Vec &odd, const Vec &even) {
  return (Step)((VecU32)odd | ((VecU32)even >> 16));
}
TANDEM_INLINE Vec odd_of(const Step &s) { return (Vec)((VecU32)s & 0xffff0000u); }
TANDEM_INLINE Vec even_of(const Step &s) { return (Vec)((VecU32)s << 16); }
TANDEM_INLINE Vec dot(const Vec &sum, const Step &a, const Step &b) { return dot_pairs(sum, a, b); }

// The lanes of a step that fill one register.
using Part = Pairs;
TANDEM_INLINE Part load_part_of_step(const Item *p, int) { return Pairs::load(p); }
#else
struct Step {
  Vec odd, even;
};

TANDEM_INLINE Step load_step(const Item *p) { return {load(p), load(p + kLanes)}; }
TANDEM_INLINE void store_step(Item *p, const Step &s) {
  store(p, s.odd);
  store(p + kLanes, s.even);
}
TANDEM_INLINE Step step_of(const Vec &odd, const Vec &even) { return {odd, even}; }
TANDEM_INLINE Step step_of(const VecBf16 &v) {
  return {(Vec)((VecU32)v & 0xffff0000u), (Vec)((VecU32)v << 16)};
}
TANDEM_INLINE Vec odd_of(const Step &s) { return s.odd; }
TANDEM_INLINE Vec even_of(const Step &s) { return s.even; }
TANDEM_INLINE Vec dot(const Vec &sum, const Step &a, const Step &b) {
  return add_exact_product(add_exact_product(sum, a.odd, b.odd), a.even, b.even);
}

struct Part {
  Register odd, even;
  TANDEM_INLINE Register dot(const Register &sum, const Part &other) const {
    return add_exact(add_exact(sum, odd, other.odd), even, other.even);
  }
};
TANDEM_INLINE Part load_part_of_step(const Item *p, int part) {
  return {load_register(p + part * kRegister), load_register(p + kLanes + part * kRegister)};
}
#endif

// Values below 2^-126 count as zero, as the processor's bf16 instruction has it by itself; that
// they may have more bits than bf16 must not touch what lies beside them.
TANDEM_INLINE Vec flush(const Vec &v) {
#if defined(__AVX512BF16__)
  return (Vec)((VecU32)v & 0xffff0000u);
#else
  const VecU32 b = (VecU32)v;
  return (Vec)(b & (VecU32)((b & 0x7f800000u) != 0));
#endif
}

// Values of activations times a power of two.
TANDEM_INLINE Step scaled(const Step &s, float factor) {
  return step_of(flush(odd_of(s) * factor), flush(even_of(s) * factor));
}

// ---- scales of weights ----------------------------------------------------------------------

#if defined(__AVX512BF16__)
// What is added to bf16 values, as integers, or taken away from them, to scale them.
typedef __m512i Scale;

TANDEM_INLINE Scale block_scale(uint8_t code) {
  const int exponent = code < kLeastScale ? kLeastScale : code;
  return _mm512_set1_epi16(static_cast<int16_t>((exponent - 127) * 128));
}

// Scales of the four groups of a chunk, each in the four lanes that have its elements: how much
// less than 2^100 they are.
TANDEM_INLINE Scale chunk_scale(const uint8_t *codes) {
  int four;
  std::memcpy(&four, codes, sizeof four);
  const __m256i places =
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i all = _mm256_shuffle_epi8(_mm256_set1_epi32(four), places);
  const __m256i less = _mm256_subs_epu8(_mm256_set1_epi8(static_cast<char>(kMostScale)), all);
  const __m256i most = _mm256_set1_epi8(static_cast<char>(kMostScale - kLeastScale));
  return _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm256_min_epu8(less, most)), 7);
}

// Scales of up to 16 chunks of a row, ready to be looked up: what chunk_scale gives, by its bytes.
struct RowScales {
  __m512i low, high;
};

TANDEM_INLINE RowScales row_scales(const uint8_t *codes, int64_t count) {
  const __mmask64 there = count < 64 ? (uint64_t{1} << count) - 1 : ~uint64_t{0};
  const __m512i all = _mm512_maskz_loadu_epi8(there, codes);
  const __m512i less = _mm512_subs_epu8(_mm512_set1_epi8(static_cast<char>(kMostScale)), all);
  const __m512i most = _mm512_set1_epi8(static_cast<char>(kMostScale - kLeastScale));
  const __m512i bounded = _mm512_min_epu8(less, most);
  const __m512i one = _mm512_set1_epi8(1), half = _mm512_set1_epi8(0x7f);
  return {_mm512_slli_epi16(_mm512_and_si512(bounded, one), 7),
          _mm512_and_si512(_mm512_srli_epi16(bounded, 1), half)};
}

TANDEM_INLINE Scale scale_at(const RowScales &scales, int64_t chunk) {
  alignas(64) static constexpr struct Places {
    uint8_t bytes[16][64] = {};
    constexpr Places() {
      for (int c = 0; c < 16; ++c)
        for (int i = 0; i < 64; ++i)
          bytes[c][i] = static_cast<uint8_t>(4 * c + i / 16 + (i % 2 ? 64 : 0));
    }
  } kPlaces;
  return _mm512_permutex2var_epi8(scales.low, _mm512_load_si512(kPlaces.bytes[chunk]), scales.high);
}

// e4m3 values times scales: zeros and NaN stay. Taking 1 away puts zeros above the other
// magnitudes.
TANDEM_INLINE Step scaled_fp8(const Step &s, const Scale &scale) {
  const __m512i v = (__m512i)s;
  const __m512i below =
      _mm512_sub_epi16(_mm512_and_si512(v, _mm512_set1_epi16(0x7fff)), _mm512_set1_epi16(1));
  const __mmask32 numbers = _mm512_cmplt_epu16_mask(below, _mm512_set1_epi16(0x7f7f));
  return (Step)_mm512_mask_add_epi16(v, numbers, v, scale);
}
#else
typedef Vec Scale;

TANDEM_INLINE Scale block_scale(uint8_t code) { return splat(weight_scale(code)); }

TANDEM_INLINE Scale chunk_scale(const uint8_t *codes) {
  constexpr VecU32 kShifts = {0, 0, 0, 0, 8, 8, 8, 8, 16, 16, 16, 16, 24, 24, 24, 24};
  uint32_t four;
  std::memcpy(&four, codes, sizeof four);
  const VecU32 code = ((VecU32{} + four) >> kShifts) & 0xffu;
  const VecU32 low = (VecU32)(code < kLeastScale);
  return (Vec)(((low & kLeastScale) | (~low & code)) << 23);
}

struct RowScales {
  const uint8_t *codes;
  int64_t count;
};

TANDEM_INLINE RowScales row_scales(const uint8_t *codes, int64_t count) { return {codes, count}; }

TANDEM_INLINE Scale scale_at(const RowScales &scales, int64_t chunk) {
  uint8_t four[4] = {};
  const int64_t left = scales.count - 4 * chunk;
  std::memcpy(four, scales.codes + 4 * chunk, static_cast<size_t>(left < 4 ? left : 4));
  return chunk_scale(four);
}

TANDEM_INLINE Step scaled_fp8(const Step &s, const Scale &scale) {
  return step_of(odd_of(s) * scale, even_of(s) * scale);
}
#endif

// ---- weights ------------------------------------------------------------------------------

// 64 e4m3 codes as two steps, as they lie.
TANDEM_INLINE void decode_fp8(const uint8_t *codes, Step *steps) {
  // The halves of the bf16 values come from tables of 128 bytes; sign and order are put right
  // after.
  alignas(64) static constexpr struct Tables {
    uint8_t low[128] = {}, high[128] = {};
    constexpr Tables() {
      for (int c = 0; c < 128; ++c) {
        int e = c >> 3, m = c & 7;
        if (e == 0 && m != 0) {
          for (e = 1; m < 8; m *= 2) --e;
          m -= 8;
        }
        const int bits = c == 0 ? 0 : c == 127 ? 0x7fc0 : ((e + 120) << 7) | (m << 4);
        low[c] = static_cast<uint8_t>(bits & 255);
        high[c] = static_cast<uint8_t>(bits >> 8);
      }
    }
  } kTables;
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i code = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(codes));
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(kTables.low), code,
                                               _mm512_load_si512(kTables.low + 64));
  const __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(kTables.high), code,
                                                _mm512_load_si512(kTables.high + 64));
  // high | (code & 0x80)
  const __m512i with_sign =
      _mm512_ternarylogic_epi32(high, code, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);
  steps[0] = step_of((VecBf16)_mm512_unpacklo_epi8(low, with_sign));
  steps[1] = step_of((VecBf16)_mm512_unpackhi_epi8(low, with_sign));
}

// Values of the e2m1 codes in the low four bits of every lane; other bits do not matter.
TANDEM_INLINE Vec e2m1_values(const VecU32 &codes) {
  constexpr Vec kValues = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                           -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  return (Vec)_mm512_permutexvar_ps((__m512i)codes, (__m512)kValues);
}

// 128 e2m1 codes as four steps of a chunk, times the scales of the chunk.
TANDEM_INLINE void decode_fp4(const uint8_t *codes, const Scale &scale, Step *steps) {
#if defined(__AVX512BF16__)
  // bf16 values times 2^100, from which scales are taken away; what would fall below zero stays
  // there. Twice, so that a fifth bit of the index, which is the next nibble's, does not matter.
  alignas(64) static constexpr uint16_t kTable[32] = {
      0x0000, 0x7100, 0x7180, 0x71c0, 0x7200, 0x7240, 0x7280, 0x72c0, 0x0000, 0xf100, 0xf180,
      0xf1c0, 0xf200, 0xf240, 0xf280, 0xf2c0, 0x0000, 0x7100, 0x7180, 0x71c0, 0x7200, 0x7240,
      0x7280, 0x72c0, 0x0000, 0xf100, 0xf180, 0xf1c0, 0xf200, 0xf240, 0xf280, 0xf2c0};
  const __m512i table = _mm512_load_si512(kTable), words = _mm512_loadu_si512(codes);
  const auto values = [&](const __m512i &index) {
    return step_of((VecBf16)_mm512_subs_epu16(_mm512_permutexvar_epi16(index, table), scale));
  };
  steps[0] = values(words);
  steps[1] = values(_mm512_srli_epi16(words, 4));
  steps[2] = values(_mm512_srli_epi16(words, 8));
  steps[3] = values(_mm512_srli_epi16(words, 12));
#else
  VecU32 words;
  std::memcpy(&words, codes, sizeof words);
  for (int s = 0; s < 4; ++s) {
    Vec values[2];
    for (int odd = 0; odd < 2; ++odd)
      values[odd] = e2m1_values(words >> (16 * odd + 4 * s)) * scale;
    steps[s] = step_of(values[1], values[0]);
  }
#endif
}

// ---- activations --------------------------------------------------------------------------

// Two steps, as they lie, of a row of activations, bf16 or mxfp8, from element k; zero beyond K.
TANDEM_INLINE void activation_steps(int64_t format, const void *x, const uint8_t *scales, int64_t k,
                                    int64_t K, Step *steps) {
  const int64_t count = K - k < 0 ? 0 : K - k < 2 * kStep ? K - k : 2 * kStep;
  if (format == TANDEM_BF16) {
    const uint16_t *row = static_cast<const uint16_t *>(x) + k;
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t left = count - i * kStep;
      const VecBf16 v = left >= kStep ? load_bf16(row + i * kStep)
                                      : load_bf16_part(row + i * kStep, left < 0 ? 0 : left);
      steps[i] = step_of(v);
    }
    return;
  }
  uint8_t padded[2 * kStep] = {};
  const uint8_t *codes = static_cast<const uint8_t *>(x) + k;
  if (count < 2 * kStep) {
    std::memcpy(padded, codes, static_cast<size_t>(count));
    codes = padded;
  }
  decode_fp8(codes, steps);
  for (int64_t i = 0; i < 2; ++i)
    if (i * kStep < count) steps[i] = scaled(steps[i], decode_ue8m0(scales[k / kStep + i]));
}

// A chunk of four steps that hold values as they lie, in the order of fp4 weights.
TANDEM_INLINE void order_chunk(const Step *steps, Item *out) {
  float values[kChunk];
  for (int i = 0; i < 4; ++i) {
    float odd[kLanes], even[kLanes];
    store(odd, odd_of(steps[i]));
    store(even, even_of(steps[i]));
    for (int l = 0; l < kLanes; ++l) {
      values[i * kStep + 2 * l] = even[l];
      values[i * kStep + 2 * l + 1] = odd[l];
    }
  }
  for (int s = 0; s < 4; ++s) {
    float odd[kLanes], even[kLanes];
    for (int l = 0; l < kLanes; ++l) {
      even[l] = values[8 * l + s];
      odd[l] = values[8 * l + 4 + s];
    }
    store_step(out + s * kStep, step_of(load(odd), load(even)));
  }
}

// A row of activations as steps, in the order of fp4 weights (chunks) or as they lie; `padded`
// values, whole chunks.
TANDEM_INLINE void arrange(int64_t format, const void *x, const uint8_t *scales, int64_t K,
                           bool chunks, int64_t padded, Item *out) {
  for (int64_t k = 0; k < padded; k += kChunk, out += kChunk) {
    Step steps[4];
    activation_steps(format, x, scales, k, K, steps);
    activation_steps(format, x, scales, k + 2 * kStep, K, steps + 2);
    if (chunks) {
      order_chunk(steps, out);
      continue;
    }
    for (int s = 0; s < 4; ++s) store_step(out + s * kStep, steps[s]);
  }
}

}  // namespace tandem::TANDEM_ISA

// Scores of the indexer: for a key the sum over heads, in order, of weight * relu(query . key).
//
// A dot product is exact before it is rounded to f32 once. Where scales are narrow (index_keys.h)
// it is one integer below 2^24, and powers of two are the only factors, so that f32 holds it and
// the weight may take the query's scale in beforehand. Elsewhere groups are added one by one, in
// f32 where that is exact, else in double. All ways give the same bits. Queries are given kOffset
// above their integers, as unsigned bytes.
#pragma once

#include <cstdint>
#include <cstring>

#include "codecs.h"
#include "index_keys.h"
#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::indexer {

constexpr int kHeads = 4;  // whose sums are made at a time
#if defined(__AVX512VNNI__)
constexpr int kTogether = kTiles;  // registers of keys
#else
constexpr int kTogether = 1;
#endif

// Queries of the rows of a call, made once: `bytes` for a row the unsigned integers [heads, dim]
// and then for each head how far its scales are apart; `numbers` for a head the scales of its
// groups, its weight, and the weight times the common scale.
struct Queries {
  uint8_t *bytes;
  float *numbers;
  int64_t heads, groups;

  int64_t dim() const { return 32 * groups; }
  uint8_t *row(int64_t t) const { return bytes + t * heads * (dim() + 1); }
  float *row_numbers(int64_t t) const { return numbers + t * heads * (groups + 2); }
};

// The query of one head; returns how far its scales are apart, kFar also where they cannot go into
// the weight.
inline int prepare_head(const uint8_t *codes, const uint8_t *scales, float weight, int64_t groups,
                        uint8_t *bytes, float *numbers) {
  constexpr int8_t kValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  int least = 255, most = 0;
  for (int64_t g = 0; g < groups; ++g) {
    least = scales[g] < least ? scales[g] : least;
    most = scales[g] > most ? scales[g] : most;
  }
  const int apart = distance(least, most);
  for (int64_t g = 0; g < groups; ++g) {
    const int shift = apart <= kSpread ? scales[g] - least : 0, factor = 1 << shift;
    numbers[g] = decode_ue8m0(static_cast<uint32_t>(scales[g] - shift));
    for (int64_t i = 0; i < 16; ++i) {
      const uint8_t code = codes[16 * g + i];
      uint8_t *quad = bytes + 32 * g + i / 4 * 8 + i % 4;
      quad[0] = static_cast<uint8_t>(kValues[code & 15] * factor + kOffset);
      quad[4] = static_cast<uint8_t>(kValues[code >> 4] * factor + kOffset);
    }
  }
  const float folded = weight * numbers[0];
  numbers[groups] = weight;
  numbers[groups + 1] = folded;
  return folded / numbers[0] == weight ? apart : kFar;  // neither rounded nor NaN
}

inline void prepare(const uint8_t *codes, const uint8_t *scales, const uint16_t *weights, int64_t T,
                    const Queries &q) {
  parallel_for(T * q.heads, 2 * q.dim(), [=](int64_t begin, int64_t end) {
    for (int64_t each = begin; each < end; ++each) {
      const int64_t t = each / q.heads, h = each % q.heads;
      q.row(t)[q.heads * q.dim() + h] = static_cast<uint8_t>(
          prepare_head(codes + each * q.dim() / 2, scales + each * q.groups, widen(weights[each]),
                       q.groups, q.row(t) + h * q.dim(), q.row_numbers(t) + h * (q.groups + 2)));
    }
  });
}

// Adds to the totals of the keys of kTogether registers: weight * relu(dot), of dots without
// scales.
template <int H>
TANDEM_INLINE void add_terms(const RegisterI32 (*dots)[H], const float *scale, const float *weights,
                             int64_t stride, float *totals) {
  Register sums[kTogether];
  for (int p = 0; p < kTogether; ++p) sums[p] = load_whole<Register>(totals + p * kRegister);
  for (int h = 0; h < H; ++h)
    for (int p = 0; p < kTogether; ++p) {
      const RegisterI32 positive = dots[p][h] & ~(dots[p][h] >> 31);
      const Register factor = load_whole<Register>(scale + p * kRegister);
      sums[p] += __builtin_convertvector(positive, Register) * factor * weights[h * stride];
    }
  std::memcpy(totals, sums, sizeof sums);
}

// Adds the terms of H narrow heads for the narrow keys of a block.
template <int H>
TANDEM_INLINE void add_narrow(const KeyBlock &keys, const uint8_t *query, const float *numbers,
                              int64_t groups, float *totals) {
  for (int first = 0; first < kBlockKeys; first += kTogether * kRegister) {
    const int t = first / kLanes, l = first % kLanes;
    RegisterI32 dots[kTogether][H];
    for (int p = 0; p < kTogether; ++p)
      for (int h = 0; h < H; ++h)
        dots[p][h] = load_whole<RegisterI32>(keys.base[t] + l + p * kRegister);
#if defined(__AVX512VNNI__)
    for (int64_t i = 0; i < groups * kQuads; ++i) {
      __m512i quads[H];
      for (int h = 0; h < H; ++h)
        quads[h] = _mm512_set1_epi32(load_whole<int32_t>(query + h * 32 * groups + 4 * i));
      for (int p = 0; p < kTogether; ++p) {
        const __m512i key = _mm512_load_si512(keys.group(p, 0, groups) + i * kQuadBytes);
        for (int h = 0; h < H; ++h)
          dots[p][h] = (RegisterI32)_mm512_dpbusd_epi32((__m512i)dots[p][h], quads[h], key);
      }
    }
#else
    for (int64_t g = 0; g < groups; ++g)
      for (int h = 0; h < H; ++h)
        dots[0][h] += group_dots(keys.group(t, g, groups) + 4 * l, query + (h * groups + g) * 32);
#endif
    add_terms<H>(dots, keys.scale[t] + l, numbers + groups + 1, groups + 2, totals + first);
  }
}

// Adds the terms of one head for any keys; the groups' parts are added as numbers of type Sum.
template <typename Sum>
TANDEM_INLINE void add_wide(const KeyBlock &keys, const uint8_t *query, const float *numbers,
                            int64_t groups, float *totals) {
  for (int first = 0; first < kBlockKeys; first += kTogether * kRegister) {
    Sum sums[kTogether] = {};
    for (int64_t g = 0; g < groups; ++g)
      for (int p = 0; p < kTogether; ++p) {
        const int t = first / kLanes + p, l = first % kLanes;
        const RegisterI32 part = load_whole<RegisterI32>(keys.group_base[t][g] + l) +
                                 group_dots(keys.group(t, g, groups) + 4 * l, query + 32 * g);
        const Register scale = load_whole<Register>(keys.group_scale[t][g] + l);
        sums[p] +=
            __builtin_convertvector(part, Sum) * numbers[g] * __builtin_convertvector(scale, Sum);
      }
    for (int p = 0; p < kTogether; ++p) {
      float *place = totals + first + p * kRegister;
      const Register dot = __builtin_convertvector(sums[p] * 0.25f, Register);
      const RegisterI32 negative = dot < 0.0f;  // NaN stays
      const Register total =
          load_whole<Register>(place) + (Register)((RegisterI32)dot & ~negative) * numbers[groups];
      std::memcpy(place, &total, sizeof total);
    }
  }
}

// How far apart the exponents of groups may be for their sum to be exact in f32: a part has 13
// bits, and `groups` of them some more.
TANDEM_INLINE int exact_in_f32(int64_t groups) {
  int bits = 24 - 13;
  for (int64_t g = 1; g < groups; g *= 2) --bits;
  return bits;
}

// bf16 scores of the keys of a block for a row; `count` of them are wanted.
__attribute__((noinline)) inline void score_block(const KeyBlock &keys, const Queries &q,
                                                  int64_t row, int64_t count, Ahead &ahead,
                                                  uint16_t *scores) {
  const uint8_t *bytes = q.row(row), *apart = bytes + q.heads * q.dim();
  const float *numbers = q.row_numbers(row);
  const int most = keys.apart == kFar ? -1 : exact_in_f32(q.groups) - keys.apart;
  const int narrow = keys.apart <= kSpread ? kSpread : -1;
  alignas(64) float totals[kBlockKeys] = {};
  for (int64_t h = 0; h < q.heads;) {
    ahead.some();
    int alike = 0;
    while (alike < kHeads && h + alike < q.heads && apart[h + alike] <= narrow) ++alike;
    const uint8_t *query = bytes + h * q.dim();
    const float *of_head = numbers + h * (q.groups + 2);
    if (alike == kHeads)
      add_narrow<kHeads>(keys, query, of_head, q.groups, totals);
    else if (alike)
      add_narrow<1>(keys, query, of_head, q.groups, totals);
    else if (apart[h] <= most)
      add_wide<Register>(keys, query, of_head, q.groups, totals);
    else
      add_wide<RegisterF64>(keys, query, of_head, q.groups, totals);
    h += alike == kHeads ? kHeads : 1;
  }
  for (int64_t k = 0; k < kBlockKeys && k < count; k += kLanes) {
    if (count - k < kLanes)
      store_part(scores + k, load(totals + k), count - k);
    else
      store(scores + k, load(totals + k));
  }
}

}  // namespace tandem::TANDEM_ISA::indexer

// Keys of the indexer as signed bytes, sixteen keys side by side: what index_score.h multiplies.
//
// Twice an e2m1 value is an integer up to 12. The scales of a key are powers of two, and mostly
// close to each other: those of a `narrow` key differ by kSpread at most, so that the integers of
// its groups, shifted, have one common scale. Other keys keep a scale a group.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "registers.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::indexer {

// Integers stay below 12 * 2^kSpread. With byte products summed into 32 bits that may be 96; where
// a group is summed in 16 bits, 24.
#if defined(__AVX512VNNI__)
constexpr int kSpread = 3, kOffset = 128;
#else
constexpr int kSpread = 1, kOffset = 24;
#endif
// Scale bytes of narrow keys and queries: no product of numbers within these leaves f32's range.
constexpr int kLeastScale = 96, kMostScale = 158;
constexpr int kTiles = 4, kBlockKeys = kTiles * kLanes;
constexpr int64_t kMostDim = 1024, kMostGroups = kMostDim / 32;
constexpr int kQuads = 8, kQuadBytes = 4 * kLanes;  // of a group; of a quad of channels of a tile

typedef uint8_t VecU8 __attribute__((vector_size(4 * kLanes)));
typedef int8_t VecI8 __attribute__((vector_size(4 * kLanes)));

// A quad has four channels; of the eight in four bytes of codes those in low nibbles come first.
struct KeyBlock {
  alignas(64) int8_t codes[kTiles * kMostDim * kLanes];  // [tile][quad][key][4], dense
  alignas(64) int32_t base[kTiles][kLanes];              // -kOffset times the sum of the integers
  alignas(64) int32_t group_base[kTiles][kMostGroups][kLanes];
  alignas(64) float scale[kTiles][kLanes];  // of narrow keys; a quarter of it, for both factors 2
  alignas(64) float group_scale[kTiles][kMostGroups][kLanes];
  int apart;  // the most that scales of a key are, see `distance`

  TANDEM_INLINE int8_t *group(int tile, int64_t g, int64_t groups) {
    return codes + (tile * groups + g) * kQuads * kQuadBytes;
  }
  TANDEM_INLINE const int8_t *group(int tile, int64_t g, int64_t groups) const {
    return codes + (tile * groups + g) * kQuads * kQuadBytes;
  }
};

// Has the keys of a block on their way from memory while another one is worked on: a few at a time,
// because a core waits for few lines at once.
struct Ahead {
  const uint8_t *const *keys;  // NULL: of no block
  int64_t bytes;               // of a key
  int done = 0;

  TANDEM_INLINE void some() {
    if (!keys || done == kBlockKeys) return;
    for (const int stop = done + 8; done < stop; ++done) {
      for (int64_t b = 0; b + 64 < bytes; b += 64) __builtin_prefetch(keys[done] + b);
      __builtin_prefetch(keys[done] + bytes - 1);
    }
  }
};

// Scale bytes of a key or of a query of one head: how far apart they are, or kFar where one is
// outside what is narrow.
constexpr int kFar = 255;

TANDEM_INLINE int distance(int least, int most) {
  return least >= kLeastScale && most <= kMostScale ? most - least : kFar;
}

// Four 32-bit words of sixteen keys, from 16 bytes of each: word d of key l at words[d] lane l.
TANDEM_INLINE void side_by_side(const uint8_t *const *keys, int64_t offset, VecU32 *words) {
#if defined(__AVX512F__)
  __m512i row[4];
  for (int i = 0; i < 4; ++i) {
    const auto part = [&](int key) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i *>(keys[key] + offset));
    };
    row[i] = _mm512_castsi128_si512(part(i));
    row[i] = _mm512_inserti32x4(row[i], part(4 + i), 1);
    row[i] = _mm512_inserti32x4(row[i], part(8 + i), 2);
    row[i] = _mm512_inserti32x4(row[i], part(12 + i), 3);
  }
  const __m512i a = _mm512_unpacklo_epi32(row[0], row[1]),
                b = _mm512_unpackhi_epi32(row[0], row[1]);
  const __m512i c = _mm512_unpacklo_epi32(row[2], row[3]),
                d = _mm512_unpackhi_epi32(row[2], row[3]);
  words[0] = (VecU32)_mm512_unpacklo_epi64(a, c);
  words[1] = (VecU32)_mm512_unpackhi_epi64(a, c);
  words[2] = (VecU32)_mm512_unpacklo_epi64(b, d);
  words[3] = (VecU32)_mm512_unpackhi_epi64(b, d);
#else
  uint32_t rows[4][kLanes];
  for (int l = 0; l < kLanes; ++l)
    for (int d = 0; d < 4; ++d) std::memcpy(&rows[d][l], keys[l] + offset + 4 * d, 4);
  std::memcpy(words, rows, sizeof rows);
#endif
}

// Integers of 64 codes in the low nibbles; bits 4 and 5 of `shift` bytes say how far each is
// shifted (bit 4 alone where kSpread is 1).
TANDEM_INLINE VecI8 integers(const VecU8 &nibbles, const VecU8 &shift) {
#if defined(__AVX512VBMI__)
  alignas(64) constexpr int8_t kTable[64] = {
      0, 1, 2,  3,  4,  6,  8,  12, 0, -1, -2,  -3,  -4,  -6,  -8,  -12,
      0, 2, 4,  6,  8,  12, 16, 24, 0, -2, -4,  -6,  -8,  -12, -16, -24,
      0, 4, 8,  12, 16, 24, 32, 48, 0, -4, -8,  -12, -16, -24, -32, -48,
      0, 8, 16, 24, 32, 48, 64, 96, 0, -8, -16, -24, -32, -48, -64, -96};
  const __m512i index = (__m512i)((nibbles & 15) | shift);
  return (VecI8)_mm512_permutexvar_epi8(index, _mm512_load_si512(kTable));
#else
  VecI8 result;
  for (int at = 0; at < 4 * kLanes; at += 4 * kRegister) {
    RegisterI8 code, more;
    std::memcpy(&code, reinterpret_cast<const uint8_t *>(&nibbles) + at, sizeof code);
    std::memcpy(&more, reinterpret_cast<const uint8_t *>(&shift) + at, sizeof more);
    const RegisterI8 m = code & 7, negative = (code & 8) > 0;
    const RegisterI8 value =
        m - (m > 4) - (m > 5) + ((m > 6) & 3);  // a comparison that holds is -1
    const RegisterI8 shifted = value + (value & (more > 0));
    const RegisterI8 signed_value = (shifted ^ negative) - negative;
    std::memcpy(reinterpret_cast<uint8_t *>(&result) + at, &signed_value, sizeof signed_value);
  }
  return result;
#endif
}

// Products of eight quads of the keys in a register with eight quads of a query, which are the same
// for all keys and unsigned, added up. |sums of two products| stay below 2^12 where kSpread is 1.
TANDEM_INLINE RegisterI32 group_dots(const int8_t *keys, const uint8_t *query) {
#if defined(__AVX512VNNI__)
  __m512i sum = _mm512_setzero_si512();
  for (int i = 0; i < kQuads; ++i)
    sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi32(load_whole<int32_t>(query + 4 * i)),
                              _mm512_load_si512(keys + i * kQuadBytes));
  return (RegisterI32)sum;
#elif defined(__AVX2__)
  __m256i sum = _mm256_setzero_si256();
  for (int i = 0; i < kQuads; ++i) {
    const __m256i quad = _mm256_set1_epi32(load_whole<int32_t>(query + 4 * i));
    sum = _mm256_add_epi16(sum,
                           _mm256_maddubs_epi16(quad, load_whole<__m256i>(keys + i * kQuadBytes)));
  }
  return (RegisterI32)_mm256_madd_epi16(sum, _mm256_set1_epi16(1));
#else
  RegisterI16 sum = {};
  for (int i = 0; i < kQuads; ++i) {
    const RegisterI16 key = load_whole<RegisterI16>(keys + i * kQuadBytes);
    const RegisterI16 quad = (RegisterI16)(RegisterI32{} + load_whole<int32_t>(query + 4 * i));
    sum += (key << 8 >> 8) * (quad & 0xff) + (key >> 8) * ((quad >> 8) & 0xff);
  }
  return ((RegisterI32)sum << 16 >> 16) + ((RegisterI32)sum >> 16);
#endif
}

// Scale bytes of sixteen keys, [group][key].
TANDEM_INLINE void load_scales(const uint8_t *const *keys, int64_t groups, VecI32 *scales) {
  for (int64_t g = 0; g < groups; g += 4) {
    const int64_t count = groups - g < 4 ? groups - g : 4;
    uint32_t words[kLanes];  // that end where the scales end, so that nothing beyond is read
    for (int l = 0; l < kLanes; ++l)
      std::memcpy(&words[l], keys[l] + 16 * groups + g + count - 4, 4);
    VecU32 word;
    std::memcpy(&word, words, sizeof word);
    word >>= static_cast<uint32_t>(8 * (4 - count));
    for (int64_t i = 0; i < count; ++i, word >>= 8) scales[g + i] = (VecI32)(word & 255u);
  }
}

// Of numbers far from overflow; comparisons of such wide vectors are slow, see registers.h.
TANDEM_INLINE VecI32 below(const VecI32 &a, const VecI32 &b) { return (a - b) >> 31; }

TANDEM_INLINE VecI32 choose(const VecI32 &which, const VecI32 &a, const VecI32 &b) {
  return (which & a) | (~which & b);
}

// 2^(byte - 127) with NaN for 255; bytes 0 and 255 are the ones that are no exponents of f32.
TANDEM_INLINE Vec scales_of(const VecI32 &bytes) {
  const VecI32 zero = below(bytes, VecI32{} + 1), nan = below(VecI32{} + 254, bytes);
  return (Vec)((bytes << 23) | (zero & 0x400000) | (nan & 0x7fc00000));
}

// One tile of a block from the entries of sixteen keys, codes and then scales.
__attribute__((noinline)) inline void decode_tile(const uint8_t *const *keys, int64_t groups,
                                                  int tile, KeyBlock &block) {
  VecI32 scales[kMostGroups];
  load_scales(keys, groups, scales);
  VecI32 least = VecI32{} + 255, most = {};
  for (int64_t g = 0; g < groups; ++g) {
    least = choose(below(scales[g], least), scales[g], least);
    most = choose(below(most, scales[g]), scales[g], most);
  }
  const VecI32 outside = below(least, VecI32{} + kLeastScale) | below(VecI32{} + kMostScale, most);
  const VecI32 apart = choose(outside, VecI32{} + kFar, most - least);
  const VecI32 narrow = below(apart, VecI32{} + (kSpread + 1));
  for (int l = 0; l < kLanes; ++l) block.apart = apart[l] > block.apart ? apart[l] : block.apart;
  store(block.scale[tile], scales_of(least) * 0.25f);
  uint8_t ones[4 * kQuads];
  std::memset(ones, 1, sizeof ones);
  std::memset(block.base[tile], 0, sizeof block.base[tile]);
  for (int64_t g = 0; g < groups; ++g) {
    VecI32 shift = ((scales[g] - least) & narrow) << 4;  // of each byte of a word
    shift |= shift << 8;
    shift |= shift << 16;
    store(block.group_scale[tile][g], scales_of(choose(narrow, least, scales[g])));
    VecU32 words[4];
    side_by_side(keys, 16 * g, words);
    int8_t *out = block.group(tile, g, groups);
    for (int d = 0; d < 4; ++d) {
      const VecI8 low = integers((VecU8)words[d], (VecU8)shift);
      const VecI8 high = integers((VecU8)(words[d] >> 4), (VecU8)shift);
      std::memcpy(out + 2 * d * kQuadBytes, &low, sizeof low);
      std::memcpy(out + (2 * d + 1) * kQuadBytes, &high, sizeof high);
    }
    for (int l = 0; l < kLanes; l += kRegister) {
      const RegisterI32 sum = group_dots(out + 4 * l, ones) * -kOffset;
      const RegisterI32 base = load_whole<RegisterI32>(block.base[tile] + l) + sum;
      std::memcpy(block.group_base[tile][g] + l, &sum, sizeof sum);
      std::memcpy(block.base[tile] + l, &base, sizeof base);
    }
  }
}

// A block from the entries of 64 keys.
inline void decode_block(const uint8_t *const *keys, int64_t groups, KeyBlock &block) {
  block.apart = 0;
  for (int tile = 0; tile < kTiles; ++tile) decode_tile(keys + tile * kLanes, groups, tile, block);
}

}  // namespace tandem::TANDEM_ISA::indexer

// Attention of rows over cache entries that all heads share: what a call gets, how it is cut into
// tasks, and the memory between them.
//
// The slots of a row lie in chunks of 64 places, those of the window first. Three kinds of tasks
// follow each other, for a few rows at a time:
//
//   1. query: turned, as pairs of channels with heads in the lanes (attention_scores.h)
//   2. a chunk: entries to bf16, scores, and weights e^(score - peak of the chunk)
//   3. channels of heads: weighted sums of the chunks, and what is made of them (attention_sums.h)
//
// So the bits of a row depend on its places only. Absent entries take no part and no time.
#pragma once

#include <cstdint>

#include "entries.h"
#include "registers.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::attention {

constexpr int64_t kChunk = 64;       // places of a chunk
constexpr int64_t kBlockHeads = 32;  // heads and channels of a task of sums
constexpr int64_t kBlockDim = 64;
constexpr int64_t kAlikeRows = 8;  // of a prompt that one thread takes in turn

TANDEM_INLINE int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }

// A cache and the slots that rows read in it, `width` of each row.
struct EntryList {
  const uint8_t *cache;
  const int32_t *slots;
  int64_t width, entries, format;

  int32_t check(int64_t T, int64_t D) const {
    if (width < 0 || entries < 0) return TANDEM_BAD_SHAPE;
    if (!width) return TANDEM_OK;
    const int64_t group = group_of(format);
    if (!group) return TANDEM_BAD_VALUE;
    if (D % group) return TANDEM_BAD_SHAPE;
    if (T && (!slots || !cache)) return TANDEM_NULL_POINTER;
    return slots_inside(slots, T * width, entries) ? TANDEM_OK : TANDEM_BAD_INDEX;
  }
};

struct Attention {
  const uint16_t *q;     // [T, H, D]
  const float *cos_sin;  // [T, turned]
  EntryList window, main;
  const float *sink;  // [H]
  float scale;
  int64_t T, H, D, turned;
  uint32_t *scratch;
  int64_t rows;  // that scratch has memory for
  bool alike;    // rows name much the same entries as those before them; a matter of speed

  int32_t check(int64_t words) const {
    if (T < 0 || H < 1 || D < kLanes || D % kLanes || turned < 0 || turned > D || turned % 2)
      return TANDEM_BAD_SHAPE;
    if (T && (rows < 1 || words != row_words())) return TANDEM_BAD_SHAPE;
    if (T && (!q || !sink || !scratch || (turned && !cos_sin))) return TANDEM_NULL_POINTER;
    const int32_t status = window.check(T, D);
    return status ? status : main.check(T, D);
  }

  // Memory of a row, in words: the query, and of each chunk the entries, the weights, for every
  // head the peak and the sum, and the number of entries.
  TANDEM_INLINE int64_t lanes() const { return parts(H, kLanes) * kLanes; }
  TANDEM_INLINE int64_t chunks() const {
    return parts(window.width, kChunk) + parts(main.width, kChunk);
  }
  TANDEM_INLINE int64_t query_words() const { return D / 2 * lanes(); }
  TANDEM_INLINE int64_t chunk_words() const {
    return kChunk / 2 * D + (kChunk + 2) * lanes() + kLanes;
  }
  int64_t row_words() const { return query_words() + chunks() * chunk_words(); }
};

// The memory of a chunk.
struct Chunk {
  // [32, D / 16, 32] bf16: sixteen channels of an entry and of the next one, side by side while
  // scores are made, then pair by pair.
  uint16_t *keys;
  // f32 [64, lanes] scores, then in their place [32, 2, lanes] pairs of bf16: weights of two
  // entries, and what is missing to them.
  uint32_t *weights;
  float *peak, *sum;  // [lanes]
  uint32_t *count;

  Chunk(const Attention &a, int64_t place, int64_t chunk) {
    uint32_t *p = a.scratch + place * a.row_words() + a.query_words() + chunk * a.chunk_words();
    keys = reinterpret_cast<uint16_t *>(p);
    weights = p + kChunk / 2 * a.D;
    peak = reinterpret_cast<float *>(weights + kChunk * a.lanes());
    sum = peak + a.lanes();
    count = weights + (kChunk + 2) * a.lanes();
  }
};

// e^x for x <= 0, zero below -87, within 2^-23 of it; NaN stays NaN.
TANDEM_INLINE Register exp_weight(const Register &x) {
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Register shifted = x * 1.44269504f + kToInteger;
  const Register k = shifted - kToInteger;
  const Register r = x - k * 0.693359375f - k * -2.12194440e-4f;  // the first product is exact
  Register p = all_lanes(1.9875691500e-4f);
  constexpr float kSeries[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                               1.6666665459e-1f, 5.0000001201e-1f};
  for (const float c : kSeries) p = p * r + c;
  p = p * (r * r) + r + 1.0f;
  const Register power =
      (Register)(((RegisterU32)shifted + 127u) << 23);  // the low bits of `shifted` hold k
  return x < -87.0f ? Register{} : p * power;
}

TANDEM_INLINE Register higher(const Register &a, const Register &b) { return a > b ? a : b; }

}  // namespace tandem::TANDEM_ISA::attention

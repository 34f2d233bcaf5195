// Attention, first half: queries and scores. Heads lie in the lanes; a channel pair of an entry
// meets all of them at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "attention.h"
#include "registers.h"
#include "rotate.h"

namespace tandem::TANDEM_ISA::attention {

constexpr int kEntryStep = 8;  // entries of a step of scores where there is one register of heads
constexpr int64_t kDimStep = 128;  // channels whose part of a query stays in the first cache
// Weights below this are zero. It keeps sums of what caches hold, multiples of 2^-31, clear of the
// subnormal numbers that a processor's bf16 products do not have.
constexpr float kLeastWeight = 0x1p-80f;

// Sixteen heads of a query: [D / 2, lanes] words, each two channels of the head of its lane.
inline void prepare_query(const Attention &a, int64_t t, int64_t place, int64_t vec) {
  uint32_t *query = a.scratch + place * a.row_words() + vec * kLanes;
  const int64_t words = a.D / 2, lanes = a.lanes(), kept = words - a.turned / 2;
  const int64_t first = vec * kLanes, heads = a.H - first < kLanes ? a.H - first : kLanes;
  const float *angles = a.cos_sin + t * a.turned;
  for (int64_t j = 0; j < words; j += kLanes) {
    const int64_t count = words - j < kLanes ? words - j : kLanes;
    uint32_t block[kLanes][kLanes] = {};  // by channel pair and head
    for (int64_t h = 0; h < heads; ++h) {
      uint32_t row[kLanes];
      store_words(row, load_words(a.q + (t * a.H + first + h) * a.D + 2 * j, count), kLanes);
      for (int i = 0; i < kLanes; ++i) block[i][h] = row[i];
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t pair = j + i - kept;
      VecU32 word = load_words(block[i], kLanes);
      if (pair >= 0) word = turn(word, splat(angles[pair]), splat(angles[a.turned / 2 + pair]));
      store_words(query + (j + i) * lanes, word, kLanes);
    }
  }
}

// Entries that a thread has decoded in a call, as bf16.
class Decoded {
 public:
  // The number of a new call, of whatever op.
  static uint64_t next_call() {
    static std::atomic<uint64_t> calls{0};
    return ++calls;
  }

  // This thread's, for a call of the given number; nothing of another call is in it. NULL where
  // entries are too long.
  static Decoded *of_thread(uint64_t call, int64_t D) {
    static thread_local Decoded decoded;
    if (decoded.call_ != call) {
      std::memset(decoded.held_, 0, sizeof decoded.held_);
      decoded.call_ = call;
      decoded.D_ = D;
      decoded.places_ = 1;
      while (decoded.places_ < kMost && 2 * decoded.places_ * D <= kValues) decoded.places_ *= 2;
    }
    return D <= kValues ? &decoded : nullptr;
  }

  // The values of the entry in a slot. They hold until the next call.
  TANDEM_INLINE const uint16_t *at(int64_t format, const uint8_t *entry, int64_t slot) {
    const int64_t place = slot & (places_ - 1);
    uint16_t *values = values_ + place * D_;
    if (held_[place] != entry) {
      held_[place] = entry;
      decode_entries<1>(format, &entry, D_, [values](int64_t k, const Register *v) {
        store_halves(values + k, (RegisterU32)v[0] >> 16);
      });
    }
    return values;
  }

 private:
  static constexpr int64_t kMost = 512, kValues = 1 << 16;
  uint64_t call_ = 0;
  int64_t D_ = 0, places_ = 1;
  const uint8_t *held_[kMost];
  alignas(64) uint16_t values_[kValues];
};

// Sixteen channels of an entry and of another in turn.
TANDEM_INLINE void put_beside(uint16_t *key, const uint16_t *values, int64_t D) {
  for (int64_t k = 0; k < D; k += kLanes)
    std::memcpy(key + 2 * k, values + k, kLanes * sizeof *values);
}

// Entries that a chunk of a row names, as bf16 side by side; returns their number. Where that is
// odd the last one is there twice: whatever it holds, it is one of the row's.
inline int64_t read_entries(const Attention &a, int64_t t, int64_t number, const Chunk &chunk,
                            Decoded *decoded) {
  const int64_t before = parts(a.window.width, kChunk);
  const EntryList &list = number < before ? a.window : a.main;
  const int64_t start = (number < before ? number : number - before) * kChunk;
  const int64_t end = list.width - start < kChunk ? list.width : start + kChunk;
  const int64_t size = entry_bytes(list.format, a.D);
  const uint8_t *held[kChunk + 1];
  int64_t count = 0;
  for (int64_t i = start; i < end; ++i) {
    const int32_t slot = list.slots[t * list.width + i];
    if (slot < 0) continue;
    const uint8_t *entry = list.cache + slot * size;
    if (decoded) {
      const uint16_t *values = decoded->at(list.format, entry, slot);
      uint16_t *key = chunk.keys + count / 2 * 2 * a.D;
      put_beside(key + count % 2 * kLanes, values, a.D);
      if (count % 2 == 0) put_beside(key + kLanes, values, a.D);  // it may be the last one
      ++count;
      continue;
    }
    held[count++] = entry;
    for (int64_t byte = 0; byte < size; byte += 64) __builtin_prefetch(held[count - 1] + byte);
  }
  if (decoded) return count;
  if (count % 2) held[count] = held[count - 1];
  for (int64_t e = 0; e < count; e += 2) {
    uint16_t *key = chunk.keys + e * a.D;
    decode_entries<2>(list.format, held + e, a.D, [key](int64_t k, const Register *values) {
      store_beside(key, k, values[0], values[1]);
    });
  }
  return count;
}

// Adds what channels [begin, end) bring to the scores of `Entries` entries for `Heads` registers of
// heads. A lane adds its channels in order.
template <int Heads, int Entries>
TANDEM_INLINE void add_scores(const uint32_t *query, int64_t lanes, const uint16_t *keys, int64_t D,
                              int64_t begin, int64_t end, float *scores) {
  Register sums[Heads][Entries];
  for (int h = 0; h < Heads; ++h)
    for (int e = 0; e < Entries; ++e)
      sums[h][e] = begin ? load_register(scores + e * lanes + h * kRegister) : Register{};
  for (int64_t k = begin; k < end; k += kLanes) {
    for (int i = 0; i < kLanes / 2; ++i) {
      Pairs heads[Heads];
      for (int h = 0; h < Heads; ++h)
        heads[h] = Pairs::load(query + (k / 2 + i) * lanes + h * kRegister);
      for (int e = 0; e < Entries; ++e) {
        const Pairs key = Pairs::all(keys + e / 2 * (2 * D) + e % 2 * kLanes + 2 * k + 2 * i);
        for (int h = 0; h < Heads; ++h) sums[h][e] = heads[h].dot(sums[h][e], key);
      }
    }
  }
  for (int h = 0; h < Heads; ++h)
    for (int e = 0; e < Entries; ++e)
      store_register(scores + e * lanes + h * kRegister, sums[h][e]);
}

// f32 [count, lanes]; what fills a step up has scores that nobody reads.
inline void make_scores(const Attention &a, const uint32_t *query, const Chunk &chunk,
                        int64_t count) {
  const int64_t lanes = a.lanes();
  float *scores = reinterpret_cast<float *>(chunk.weights);
  for (int64_t begin = 0; begin < a.D; begin += kDimStep) {
    const int64_t end = a.D - begin < kDimStep ? a.D : begin + kDimStep;
    int64_t h = 0;
    for (; h + kStepRegisters * kRegister <= lanes; h += kStepRegisters * kRegister)
      for (int64_t e = 0; e < count; e += kStepWords)
        add_scores<kStepRegisters, kStepWords>(query + h, lanes, chunk.keys + e * a.D, a.D, begin,
                                               end, scores + e * lanes + h);
    for (; h < lanes; h += kRegister)
      for (int64_t e = 0; e < count; e += kEntryStep)
        add_scores<1, kEntryStep>(query + h, lanes, chunk.keys + e * a.D, a.D, begin, end,
                                  scores + e * lanes + h);
  }
}

// Weights of a register of heads in pairs of entries, each as the sum of two bf16 values, which is
// within 2^-17 of it, with their peak and their sum.
TANDEM_INLINE void weigh(const Attention &a, const Chunk &chunk, int64_t count, int64_t head) {
  const int64_t lanes = a.lanes();
  const float *scores = reinterpret_cast<const float *>(chunk.weights) + head;
  Register peak = all_lanes(-__builtin_inff()), sum = {};
  for (int64_t e = 0; e < count; ++e)
    peak = higher(load_register(scores + e * lanes) * a.scale, peak);
  store_register(chunk.peak + head, peak);
  const Register base = peak == -__builtin_inff() ? Register{} : peak;
  const auto weight = [&](int64_t e) {
    if (e >= count) return Register{};
    const Register w = exp_weight(load_register(scores + e * lanes) * a.scale - base);
    const Register kept = w < kLeastWeight ? Register{} : w;
    sum += kept;
    return kept;
  };
  for (int64_t e = 0; e < count; e += 2) {  // they replace the scores of their entries
    const Register first = weight(e), second = weight(e + 1);
    const RegisterU32 low = narrow_register(first), high = narrow_register(second);
    const RegisterU32 low_rest = narrow_register(first - (Register)(low << 16));
    const RegisterU32 high_rest = narrow_register(second - (Register)(high << 16));
    const RegisterU32 pair = low | (high << 16), rest = low_rest | (high_rest << 16);
    std::memcpy(chunk.weights + e * lanes + head, &pair, sizeof pair);
    std::memcpy(chunk.weights + (e + 1) * lanes + head, &rest, sizeof rest);
  }
  store_register(chunk.sum + head, sum);
}

// Keys of two entries, side by side, to pairs.
TANDEM_INLINE void pair_up(uint16_t *keys, int64_t vecs) {
  for (int64_t i = 0; i < vecs; ++i, keys += 2 * kLanes) {
    VecU16 first, second;
    std::memcpy(&first, keys, sizeof first);
    std::memcpy(&second, keys + kLanes, sizeof second);
    store_words(
        keys,
        __builtin_convertvector(first, VecU32) | (__builtin_convertvector(second, VecU32) << 16),
        kLanes);
  }
}

inline void score_chunk(const Attention &a, int64_t t, int64_t place, int64_t number,
                        Decoded *decoded) {
  const Chunk chunk(a, place, number);
  const int64_t count = read_entries(a, t, number, chunk, decoded);
  *chunk.count = static_cast<uint32_t>(count);
  if (!count) return;
  make_scores(a, a.scratch + place * a.row_words(), chunk, count);
  for (int64_t head = 0; head < a.lanes(); head += kRegister) weigh(a, chunk, count, head);
  pair_up(chunk.keys, parts(count, 2) * (a.D / kLanes));
}

}  // namespace tandem::TANDEM_ISA::attention

// index_scores_at: scores of given entries, -inf where there is none.
//
//   codes     u8 [T, heads * groups * 16]   queries in mxfp4; a head has groups * 32 channels
//   scales    u8 [T, heads * groups]
//   weights   bf16 [T, heads]
//   cache     u8 [entries, groups * 17]     index keys in mxfp4: codes, then scales
//   table     i32 [requests, columns]       blocks of block_entries entries; negative: not held,
//                                           which counts as keys of zeros
//   row_slot  i32 [T]                       request of a row; negative: none
//   wanted    i32 [T, P]                    entries; negative: none
//   scores    bf16 [T, P]                   out
//   bytes     u8 [T, heads * (groups * 32 + 1)]   for the call's own use
//   numbers   f32 [T, heads * (groups + 2)]       for the call's own use
#include "index_paging.h"
#include "index_score.h"
#include "parallel.h"

namespace tandem::TANDEM_ISA::ops::index_scores_at {

using namespace indexer;

struct Call {
  Queries q;
  Paging paging;
  const int32_t *row_slot, *wanted;
  uint16_t *scores;
  int64_t P;

  // First cache entries of the blocks that entries lie in; blocks mostly follow each other.
  struct Place {
    int64_t block = -1, start = -1;
  };
  int64_t find(int64_t request, int64_t entry, Place &place) const {
    if (request < 0 || entry < 0) return -1;
    const auto size = static_cast<uint32_t>(paging.block_entries);
    const int64_t block = static_cast<uint32_t>(entry) / size;
    if (block != place.block) place = {block, paging.first_entry(request, block)};
    return place.start < 0 ? -1 : place.start + entry - block * paging.block_entries;
  }
  bool valid(int64_t T) const {
    for (int64_t t = 0; t < T; ++t) {
      if (row_slot[t] >= paging.requests) return false;
      int32_t last = -1;
      for (int64_t i = 0; i < P; ++i) last = wanted[t * P + i] > last ? wanted[t * P + i] : last;
      if (row_slot[t] >= 0 && !paging.holds(row_slot[t], int64_t{last} + 1)) return false;
    }
    return true;
  }
};

// The keys of `count` entries of a row, a block at most; whether there are any.
bool find_keys(const Call &call, int64_t t, const int32_t *wanted, int64_t count,
               const uint8_t *none, const uint8_t **keys) {
  Call::Place place;
  bool any = false;
  for (int64_t i = 0; i < kBlockKeys; ++i) {
    const int64_t entry = i < count ? wanted[i] : -1;
    const int64_t held = call.find(call.row_slot[t], entry, place);
    keys[i] = held < 0 ? none : call.paging.entry(held);
    any |= entry >= 0;
  }
  return any;
}

// Scores of the entries [begin, end) of a row.
void score_span(const Call &call, int64_t t, int64_t begin, int64_t end, const uint8_t *none,
                KeyBlock &block) {
  const int32_t *wanted = call.wanted + t * call.P;
  uint16_t *scores = call.scores + t * call.P;
  const auto size = [&](int64_t k) { return end - k < kBlockKeys ? end - k : kBlockKeys; };
  const uint8_t *keys[kBlockKeys], *next[kBlockKeys];
  bool any, any_next = find_keys(call, t, wanted + begin, size(begin), none, next);
  for (int64_t k = begin; k < end; k += kBlockKeys) {
    std::memcpy(keys, next, sizeof keys);
    any = any_next;
    const int64_t after = k + kBlockKeys;
    any_next = after < end && find_keys(call, t, wanted + after, size(after), none, next);
    if (any) {
      Ahead ahead{any_next ? next : nullptr, 17 * call.q.groups};
      decode_block(keys, call.q.groups, block);
      score_block(block, call.q, t, size(k), ahead, scores + k);
    }
    for (int64_t i = k; i < k + size(k); ++i)
      if (wanted[i] < 0) hide(scores, i, i + 1);
  }
}

int32_t run(const uint8_t *codes, const uint8_t *scales, const uint16_t *weights,
            const uint8_t *cache, const int32_t *table, const int32_t *row_slot,
            const int32_t *wanted, uint16_t *scores, uint8_t *bytes, float *numbers, int64_t T,
            int64_t heads, int64_t groups, int64_t P, int64_t requests, int64_t columns,
            int64_t block_entries, int64_t entries) {
  const Paging paging{cache, table, requests, columns, block_entries, entries, groups};
  if (T < 0 || heads < 1 || P < 0 || !paging.possible()) return TANDEM_BAD_SHAPE;
  if (!T || !P) return TANDEM_OK;
  if (!codes || !scales || !weights || !cache || !table || !row_slot || !wanted || !scores ||
      !bytes || !numbers)
    return TANDEM_NULL_POINTER;
  const Call call{{bytes, numbers, heads, groups}, paging, row_slot, wanted, scores, P};
  if (!call.valid(T)) return TANDEM_BAD_INDEX;
  prepare(codes, scales, weights, T, call.q);
  const int64_t spans = (P + kSpanKeys - 1) / kSpanKeys;
  parallel_for(T * spans, kSpanKeys * heads * groups / 8, [&](int64_t begin, int64_t end) {
    const NoKey none(groups);
    KeyBlock block;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t task = dealt(i, T * spans), t = task / spans, from = task % spans * kSpanKeys;
      const int64_t to = from + kSpanKeys < P ? from + kSpanKeys : P;
      score_span(call, t, from, to, none.bytes, block);
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::index_scores_at

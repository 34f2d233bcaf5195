// index_scores: scores of the entries that rows see, -inf for those beyond.
//
//   codes     u8 [T, heads * groups * 16]   queries in mxfp4; a head has groups * 32 channels
//   scales    u8 [T, heads * groups]
//   weights   bf16 [T, heads]
//   cache     u8 [entries, groups * 17]     index keys in mxfp4: codes, then scales
//   table     i32 [requests, columns]       blocks of block_entries entries; negative: not held,
//                                           which counts as keys of zeros
//   row_slot  i32 [T]                       request of a row; negative: none
//   lens      i32 [T]                       entries that a row sees
//   scores    bf16 [T, width]               out
//   bytes     u8 [T, heads * (groups * 32 + 1)]   for the call's own use
//   numbers   f32 [T, heads * (groups + 2)]       for the call's own use
//
// A task takes a span of keys for a tile of rows: keys are decoded once for those rows of the tile
// that are neighbours and of one request.
#include "index_paging.h"
#include "index_score.h"
#include "parallel.h"

namespace tandem::TANDEM_ISA::ops::index_scores {

using namespace indexer;

constexpr int64_t kRows = 16;

struct Call {
  Queries q;
  Paging paging;
  const int32_t *row_slot, *lens;
  uint16_t *scores;
  int64_t T, width;

  int64_t seen(int64_t t) const {
    const int64_t n = lens[t] < width ? lens[t] : width;
    return n > 0 ? n : 0;
  }
  // End of the run of rows of one request that begins at a row, and how much the run sees.
  int64_t run(int64_t first, int64_t end, int64_t *most) const {
    int64_t t = first;
    for (*most = 0; t < end && row_slot[t] == row_slot[first]; ++t)
      *most = seen(t) > *most ? seen(t) : *most;
    return t;
  }
  bool valid() const {
    for (int64_t t = 0, most = 0; t < T;) {
      const int64_t request = row_slot[t];
      t = run(t, T, &most);
      if (request >= paging.requests || (request >= 0 && !paging.holds(request, most)))
        return false;
    }
    return true;
  }
};

// The keys of a block's entries from `first` on; `none` from `stop` on.
void find_keys(const Paging &paging, int64_t request, int64_t first, int64_t stop,
               const uint8_t *none, const uint8_t **keys) {
  const int64_t count = stop - first < kBlockKeys ? stop - first : kBlockKeys;
  int64_t block = first / paging.block_entries, offset = first % paging.block_entries;
  for (int64_t i = 0; i < count; ++block, offset = 0) {
    const int64_t start = request < 0 ? -1 : paging.first_entry(request, block);
    for (; i < count && offset < paging.block_entries; ++i, ++offset)
      keys[i] = start < 0 ? none : paging.entry(start + offset);
  }
  for (int64_t i = count; i < kBlockKeys; ++i) keys[i] = none;
}

// Keys [begin, end) of the rows [first, last), of one request, that see `most` at most.
void score_run(const Call &call, int64_t first, int64_t last, int64_t begin, int64_t end,
               int64_t most, const uint8_t *none, KeyBlock &block) {
  const int64_t request = call.row_slot[first], stop = most < end ? most : end;
  const uint8_t *keys[kBlockKeys], *next[kBlockKeys];
  if (begin < stop) find_keys(call.paging, request, begin, stop, none, next);
  for (int64_t k = begin; k < stop; k += kBlockKeys) {
    std::memcpy(keys, next, sizeof keys);
    const bool more = k + kBlockKeys < stop;
    if (more) find_keys(call.paging, request, k + kBlockKeys, stop, none, next);
    Ahead ahead{more ? next : nullptr, 17 * call.q.groups};
    decode_block(keys, call.q.groups, block);
    for (int64_t t = first; t < last; ++t) {
      const int64_t left = call.seen(t) - k, count = left < kBlockKeys ? left : kBlockKeys;
      if (count > 0) score_block(block, call.q, t, count, ahead, call.scores + t * call.width + k);
    }
  }
  for (int64_t t = first; t < last; ++t) {
    const int64_t from = call.seen(t) > begin ? call.seen(t) : begin;
    hide(call.scores + t * call.width, from, end);
  }
}

void score_task(const Call &call, int64_t task, int64_t spans, const uint8_t *none,
                KeyBlock &block) {
  const int64_t top = task / spans * kRows, begin = task % spans * kSpanKeys;
  const int64_t bottom = top + kRows < call.T ? top + kRows : call.T;
  const int64_t end = begin + kSpanKeys < call.width ? begin + kSpanKeys : call.width;
  for (int64_t t = top; t < bottom;) {
    int64_t most;
    const int64_t next = call.run(t, bottom, &most);
    score_run(call, t, next, begin, end, most, none, block);
    t = next;
  }
}

int32_t run(const uint8_t *codes, const uint8_t *scales, const uint16_t *weights,
            const uint8_t *cache, const int32_t *table, const int32_t *row_slot,
            const int32_t *lens, uint16_t *scores, uint8_t *bytes, float *numbers, int64_t T,
            int64_t heads, int64_t groups, int64_t width, int64_t requests, int64_t columns,
            int64_t block_entries, int64_t entries) {
  const Paging paging{cache, table, requests, columns, block_entries, entries, groups};
  if (T < 0 || heads < 1 || width < 0 || !paging.possible()) return TANDEM_BAD_SHAPE;
  if (!T || !width) return TANDEM_OK;
  if (!codes || !scales || !weights || !cache || !table || !row_slot || !lens || !scores ||
      !bytes || !numbers)
    return TANDEM_NULL_POINTER;
  const Call call{{bytes, numbers, heads, groups}, paging, row_slot, lens, scores, T, width};
  if (!call.valid()) return TANDEM_BAD_INDEX;
  prepare(codes, scales, weights, T, call.q);
  const int64_t spans = (width + kSpanKeys - 1) / kSpanKeys;
  const int64_t tasks = (T + kRows - 1) / kRows * spans;
  const int64_t work = (T < kRows ? T : kRows) * kSpanKeys * heads * groups / 8;
  parallel_for(tasks, work, [&](int64_t begin, int64_t end) {
    const NoKey none(groups);
    KeyBlock block;
    for (int64_t i = begin; i < end; ++i)
      score_task(call, dealt(i, tasks), spans, none.bytes, block);
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::index_scores

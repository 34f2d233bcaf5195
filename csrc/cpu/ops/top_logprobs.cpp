// top_logprobs: the n largest values of each row, in the order (value descending, id ascending).
//
//   values    f32 [T, V]        rows `stride` apart; V up to 2^24
//   ids       i32 [T, n]        out, -1 where no value is left
//   logprobs  f32 [T, n]        out, -inf there
//   heaps     i64 [T, 16, min(n, L)]  scratch; L: length of a part of a row, see distribution.h
//
// Each part of a row keeps its best in a heap, whose least is what a vector is compared with; the
// parts' lists are merged.
#include "distribution.h"

namespace tandem::TANDEM_ISA::ops::top_logprobs {

// The best `most` of a part, largest first; returns how many there are.
inline int64_t best_of(const Line &line, int64_t part, int64_t most, uint64_t *heap) {
  int64_t count = 0;
  float least = -__builtin_inff();  // what is not above it comes too late: ids only rise
  line.each_block(part, [&](const Register *x, int64_t k, int64_t lanes) TANDEM_FLAT {
    RegisterI32 high = x[0] > least;
    for (int i = 1; i < kGroup; ++i) high |= x[i] > least;
    if (!any(high)) return;
    for (int64_t i = 0; i < lanes; ++i) {
      const float value = line.x[k + i];
      if (!(value > least)) continue;
      const uint64_t key = place_key(image(value), k + i);
      if (count < most) {
        heap[count++] = key;
        if (count < most) continue;
        for (int64_t at = count / 2 - 1; at >= 0; --at) sink(heap, count, at);
      } else {
        heap[0] = key;
        sink(heap, count, 0);
      }
      least = preimage(key_image(heap[0]));
    }
  });
  if (count < most)
    sort_descending(heap, count);
  else
    heap_to_list(heap, count);
  return count;
}

inline void merge(const Line &line, const int64_t *counts, const uint64_t *lists, int64_t most,
                  int64_t n, int32_t *ids, float *logprobs) {
  int64_t at[kParts] = {};
  for (int64_t i = 0; i < n; ++i) {
    int64_t from = -1;
    for (int64_t part = 0; part < line.parts(); ++part)
      if (at[part] < counts[part] &&
          (from < 0 || lists[part * most + at[part]] > lists[from * most + at[from]]))
        from = part;
    ids[i] = -1;
    logprobs[i] = -__builtin_inff();
    if (from < 0) continue;
    ids[i] = key_index(lists[from * most + at[from]++]);
    logprobs[i] = line.x[ids[i]];
  }
}

int32_t run(const float *values, int32_t *ids, float *logprobs, int64_t *heaps, int64_t T,
            int64_t V, int64_t n, int64_t stride) {
  if (T < 0 || V < 0 || V > 1 << 24 || n < 0 || stride < V) return TANDEM_BAD_SHAPE;
  if (T == 0 || n == 0) return TANDEM_OK;
  if (!values || !ids || !logprobs || !heaps) return TANDEM_NULL_POINTER;
  each_line(T, 2 * V, [=](int64_t t, bool shared) {
    const Line line(values + t * stride, V, shared);
    const int64_t most = n < line.length ? n : line.length;
    uint64_t *lists = reinterpret_cast<uint64_t *>(heaps) + t * kParts * most;
    int64_t counts[kParts] = {};
    line.each_part(
        2, [&](int64_t part) { counts[part] = best_of(line, part, most, lists + part * most); });
    merge(line, counts, lists, most, n, ids + t * n, logprobs + t * n);
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::top_logprobs

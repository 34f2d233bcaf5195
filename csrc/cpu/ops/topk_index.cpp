// topk_index: indexes of the k best scores of each row.
//
//   scores   bf16 [T, S], or NULL
//   wide     f32 [T, S], or NULL: one of the two
//   index    i32 [T, k]                    out, ascending, -1 at the end
//   lists    i32 [T, parts, 2, k]          for the call's own use: the best of each part; NULL
//   where
//                                          parts is 1
//   buffer   i32 [places, 2, room]         for the call's own use
//   parts    that a row is cut into, so that few rows are work for many threads
//   room     a multiple of 16, at least k + 32
//
// How a row is cut does not change which scores are its k best.
#include "best.h"
#include "parallel.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::topk_index {

using selection::Best, selection::lanes_above;

constexpr uint32_t kAll = (1u << kLanes) - 1;

// Adds the scores [begin, end) of a row.
template <typename X>
void add_scores(const X *row, int64_t begin, int64_t end, Best &best) {
  int64_t i = begin;
  for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
    uint32_t masks[4], any = 0;
    for (int s = 0; s < 4; ++s) {
      masks[s] = lanes_above(load(row + i + s * kLanes), best.threshold());
      any |= masks[s];
    }
    if (__builtin_expect(!any, 1)) continue;
    for (int s = 0; s < 4; ++s) {
      const Vec v = load(row + i + s * kLanes);
      const uint32_t mask = masks[s] & lanes_above(v, best.threshold());
      best.add(v, mask, [&](int lane) { return static_cast<int32_t>(i + s * kLanes + lane); });
    }
  }
  for (; i < end; i += kLanes) {
    const int64_t left = end - i;
    const Vec v = left < kLanes ? load_part(row + i, left) : load(row + i);
    const uint32_t mask = left < kLanes ? kAll >> (kLanes - left) : kAll;
    best.add(v, mask & lanes_above(v, best.threshold()),
             [&](int lane) { return static_cast<int32_t>(i + lane); });
  }
}

// Adds what a part chose, which ends with -1.
void add_list(const int32_t *keys, const int32_t *indexes, int64_t k, Best &best) {
  for (int64_t i = 0; i < k && indexes[i] >= 0; i += kLanes) {
    float scores[kLanes];
    uint32_t mask = 0;
    const int64_t left = k - i < kLanes ? k - i : kLanes;
    for (int64_t l = 0; l < left && indexes[i + l] >= 0; ++l) {
      scores[l] = preimage(keys[i + l]);
      mask |= static_cast<uint32_t>(scores[l] > best.threshold()) << l;
    }
    if (mask) best.add(load_part(scores, left), mask, [&](int lane) { return indexes[i + lane]; });
  }
}

void finish(Best &best, const int32_t *indexes, int64_t k, int32_t *out) {
  const int64_t count = best.finish();
  for (int64_t i = 0; i < k; ++i) out[i] = i < count ? indexes[i] : -1;
}

struct Call {
  const uint16_t *scores;
  const float *wide;
  int32_t *index, *lists, *buffer;
  int64_t T, S, k, parts, places, room;

  int bits() const { return scores ? 16 : 32; }
  int32_t *list(int64_t t, int64_t part) const { return lists + (t * parts + part) * 2 * k; }
  // Tasks [begin, end) of a place in the buffer.
  template <typename Task>
  void in_places(int64_t tasks, int64_t work, const Task &task) const {
    parallel_for(places, work * tasks / places, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        for (int64_t i = tasks * p / places; i < tasks * (p + 1) / places; ++i)
          task(i, buffer + p * 2 * room);
    });
  }
};

void choose(const Call &call, int64_t task, int32_t *buffer) {
  const int64_t t = task / call.parts, part = task % call.parts;
  const int64_t begin = call.S * part / call.parts, end = call.S * (part + 1) / call.parts;
  int32_t *indexes = buffer + call.room;
  Best best(buffer, indexes, call.room, call.k, call.bits());
  if (call.scores)
    add_scores(call.scores + t * call.S, begin, end, best);
  else
    add_scores(call.wide + t * call.S, begin, end, best);
  if (call.parts == 1) {
    finish(best, indexes, call.k, call.index + t * call.k);
    return;
  }
  int32_t *list = call.list(t, part);
  finish(best, indexes, call.k, list + call.k);
  for (int64_t i = 0; i < call.k; ++i) list[i] = buffer[i];
}

void merge(const Call &call, int64_t t, int32_t *buffer) {
  Best best(buffer, buffer + call.room, call.room, call.k, call.bits());
  for (int64_t part = 0; part < call.parts; ++part)
    add_list(call.list(t, part), call.list(t, part) + call.k, call.k, best);
  finish(best, buffer + call.room, call.k, call.index + t * call.k);
}

int32_t run(const uint16_t *scores, const float *wide, int32_t *index, int32_t *lists,
            int32_t *buffer, int64_t T, int64_t S, int64_t k, int64_t parts, int64_t places,
            int64_t room) {
  if (T < 0 || S < 0 || k < 0 || parts < 1 || places < 1 || room % kLanes || room < k + 2 * kLanes)
    return TANDEM_BAD_SHAPE;
  if (S > INT32_MAX || k > INT32_MAX) return TANDEM_BAD_VALUE;
  if (!T || !k) return TANDEM_OK;
  if ((S && !scores == !wide) || !index || !buffer || (parts > 1 && !lists))
    return TANDEM_NULL_POINTER;
  const Call call{scores, wide, index, lists, buffer, T, S, k, parts, places, room};
  call.in_places(T * parts, S / parts,
                 [&](int64_t task, int32_t *place) { choose(call, task, place); });
  if (parts > 1)
    call.in_places(T, 8 * parts * k, [&](int64_t t, int32_t *place) { merge(call, t, place); });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::topk_index

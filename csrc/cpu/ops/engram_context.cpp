// engram_context: the last n compressed token ids of each row, and the history of what the step
// adds.
//
//   ids, positions, slot, chunk_start, chunk_end, roles   i32 [T], see Rows; slot -1: a padding row
//   vocabulary  i32 [V]
//   history     i32 [slots, ring]    read, then written: the last ring rows of each request
//   context     i32 [T, n]           out
//   pad                              what stands before a sequence's start and from an image on
//
// All reads of the history come before all writes: a row late in a chunk may write the place from
// which an early one reads. Padding rows read the last slot and write nothing.
#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::engram_context {

struct Step {
  const int32_t *ids, *positions, *slot, *chunk_start, *chunk_end, *roles, *vocabulary;
  int32_t *history;
  int64_t slots, ring;

  // Compressed id of a row of this step, -1 of an image's token.
  int32_t own(int64_t row) const { return roles[row] == 0 ? vocabulary[ids[row]] : -1; }

  int32_t *place(int64_t row, int64_t position) const {
    return history + (slot[row] < 0 ? slots - 1 : slot[row]) * ring + position % ring;
  }

  bool readable(int64_t row, int64_t words) const {
    const bool known = roles[row] != 0 || (ids[row] >= 0 && ids[row] < words);
    return known && slot[row] < slots && chunk_start[row] >= 0;
  }
};

TANDEM_INLINE void look_back(const Step &step, int64_t row, int32_t pad, int64_t n,
                             int32_t *context) {
  const int64_t position = step.positions[row], start = step.chunk_start[row];
  bool blocked = false;
  for (int64_t back = 0; back < n; ++back) {
    int32_t token = -1;
    if (!blocked && position >= back)
      token = row - back >= start ? step.own(row - back) : *step.place(row, position - back);
    blocked = blocked || token < 0;
    context[back] = blocked ? pad : token;
  }
}

int32_t run(const int32_t *ids, const int32_t *positions, const int32_t *slot,
            const int32_t *chunk_start, const int32_t *chunk_end, const int32_t *roles,
            const int32_t *vocabulary, int32_t *history, int32_t *context, int64_t T, int64_t V,
            int64_t slots, int64_t ring, int64_t pad, int64_t n) {
  if (T < 0 || V < 1 || slots < 1 || ring < 1 || n < 1) return TANDEM_BAD_SHAPE;
  if (T && (!ids || !positions || !slot || !chunk_start || !chunk_end || !roles || !vocabulary ||
            !history || !context))
    return TANDEM_NULL_POINTER;
  const Step step{ids,   positions,  slot,    chunk_start, chunk_end,
                  roles, vocabulary, history, slots,       ring};
  for (int64_t t = 0; t < T; ++t)
    if (!step.readable(t, V)) return TANDEM_BAD_INDEX;
  for (int64_t t = 0; t < T; ++t) look_back(step, t, static_cast<int32_t>(pad), n, context + t * n);
  for (int64_t t = 0; t < T; ++t)
    if (slot[t] >= 0 && positions[t] >= 0 && t >= chunk_end[t] - ring)
      *step.place(t, positions[t]) = step.own(t);
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::engram_context

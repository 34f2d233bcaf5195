// aux.verify_rows: shares the rows of a step among the drafts that are likeliest to be taken.
//
//   slots        i32 [n]           negative: none
//   rates        f32 [R + 1, B]    the rate at which each draft is reached and taken
//   drafts       i32 [R + 1, B]    -1: none
//   length       i32 [R + 1]       position of the last token
//   limit        i32 [R + 1]
//   most         i32 [n]           the most drafts that may be judged
//   slot         i32 [T]           out, -1 of padding
//   offset       i32 [T]           out, 0: the last token, j: draft j, counted from 1
//   chunk_start  i32 [T]           out, first row of the request
//   chunk_end    i32 [T]           out, one past its last
//   counts       i32 [n]           out, 1 + drafts, 0 without a slot
//   left         i32 [n]           scratch, drafts that may still be chosen
//   next         f32 [n]           scratch, rate of the next of them
//
// Rates of a request never rise, so the best draft is always the next one of some request.
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::aux_verify_rows {

// A rate as it counts beside the one of the draft before.
TANDEM_INLINE float counted(float rate, float before) {
  const float own = rate != rate ? 0.0f : rate;
  return own < before ? own : before;
}

// Drafts of a request that may be judged.
TANDEM_INLINE int32_t candidates(const int32_t *drafts, int64_t B, int64_t length, int64_t limit,
                                 int32_t most) {
  int32_t count = 0;
  while (count < B && count < most && drafts[count] >= 0 && length + 1 + count < limit - 1) ++count;
  return count;
}

// Rows of the requests, one after another; padding behind.
inline void place(const int32_t *slots, const int32_t *counts, int64_t n, int64_t T, int32_t *slot,
                  int32_t *offset, int32_t *chunk_start, int32_t *chunk_end) {
  int64_t row = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int32_t j = 0, start = static_cast<int32_t>(row); j < counts[i] && row < T; ++j, ++row) {
      slot[row] = slots[i];
      offset[row] = j;
      chunk_start[row] = start;
      chunk_end[row] = start + counts[i];
    }
  for (; row < T; ++row) {
    slot[row] = -1;
    offset[row] = 0;
    chunk_start[row] = static_cast<int32_t>(row);
    chunk_end[row] = static_cast<int32_t>(row) + 1;
  }
}

int32_t run(const int32_t *slots, const float *rates, const int32_t *drafts, const int32_t *length,
            const int32_t *limit, const int32_t *most, int32_t *slot, int32_t *offset,
            int32_t *chunk_start, int32_t *chunk_end, int32_t *counts, int32_t *left, float *next,
            int64_t n, int64_t entries, int64_t B, int64_t T) {
  if (n < 0 || entries < 1 || B < 0 || T < n) return TANDEM_BAD_SHAPE;
  if (T && (!slot || !offset || !chunk_start || !chunk_end)) return TANDEM_NULL_POINTER;
  if (n && (!slots || !length || !limit || !most || !counts || !left || !next ||
            (B && (!rates || !drafts))))
    return TANDEM_NULL_POINTER;
  for (int64_t i = 0; i < n; ++i)
    if (slots[i] >= entries) return TANDEM_BAD_INDEX;
  int64_t free = T;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t own = slots[i];
    counts[i] = own >= 0;
    left[i] = own < 0 ? 0 : candidates(drafts + own * B, B, length[own], limit[own], most[i]);
    if (left[i]) next[i] = counted(rates[own * B], __builtin_inff());
    free -= counts[i];
  }
  for (; free > 0; --free) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; ++i)
      if (left[i] && (best < 0 || next[i] > next[best])) best = i;
    if (best < 0) break;
    const int32_t taken = counts[best]++;
    if (--left[best]) next[best] = counted(rates[slots[best] * B + taken], next[best]);
  }
  place(slots, counts, n, T, slot, offset, chunk_start, chunk_end);
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::aux_verify_rows

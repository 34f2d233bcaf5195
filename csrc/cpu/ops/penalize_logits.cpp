// penalize_logits: repetition, presence and frequency penalties of single logits, in place.
//
//   logits      f32 [R, V]     in place, rows `stride` apart
//   row         i32 [N]        -1: an entry that changes nothing
//   token       i32 [N]        a place occurs once at most
//   repetition  f32 [N]        above 0: a positive logit is divided by it, another multiplied
//   minus       f32 [N]        is subtracted then
#include "parallel.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::penalize_logits {

int32_t run(float *logits, const int32_t *row, const int32_t *token, const float *repetition,
            const float *minus, int64_t N, int64_t R, int64_t V, int64_t stride) {
  if (N < 0 || R < 0 || V < 0 || stride < V) return TANDEM_BAD_SHAPE;
  if (N && (!row || !token || !repetition || !minus)) return TANDEM_NULL_POINTER;
  for (int64_t i = 0; i < N; ++i)
    if (row[i] >= R || (row[i] >= 0 && (token[i] < 0 || token[i] >= V))) return TANDEM_BAD_INDEX;
  parallel_for(N, 32, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (row[i] < 0) continue;
      float &x = logits[row[i] * stride + token[i]];
      x = (x > 0.0f ? x / repetition[i] : x * repetition[i]) - minus[i];
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::penalize_logits

// adjust_logits: adds values to single logits, in place.
//
//   logits  f32 [R, V]     in place, rows `stride` apart
//   row     i32 [N]        -1: an entry that changes nothing
//   token   i32 [N]
//   value   f32 [N]
//
// Entries are few; values for one place are added in their order.
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::adjust_logits {

int32_t run(float *logits, const int32_t *row, const int32_t *token, const float *value, int64_t N,
            int64_t R, int64_t V, int64_t stride) {
  if (N < 0 || R < 0 || V < 0 || stride < V) return TANDEM_BAD_SHAPE;
  if (N && (!row || !token || !value)) return TANDEM_NULL_POINTER;
  for (int64_t i = 0; i < N; ++i)
    if (row[i] >= R || (row[i] >= 0 && (token[i] < 0 || token[i] >= V))) return TANDEM_BAD_INDEX;
  for (int64_t i = 0; i < N; ++i)
    if (row[i] >= 0) logits[row[i] * stride + token[i]] += value[i];
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::adjust_logits

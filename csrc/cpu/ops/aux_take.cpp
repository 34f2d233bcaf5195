// aux.take: picks columns of each row.
//
//   a       i32 [T, P]
//   index   i32 [T, k]    negative: none
//   values  i32 [T, k]    out, -1 for none
#include "parallel.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::aux_take {

int32_t run(const int32_t *a, const int32_t *index, int32_t *values, int64_t T, int64_t P,
            int64_t k) {
  if (T < 0 || P < 0 || k < 0) return TANDEM_BAD_SHAPE;
  const int64_t count = T * k;
  if (count && (!index || !values || (P && !a))) return TANDEM_NULL_POINTER;
  int32_t most = -1;
  for (int64_t i = 0; i < count; ++i) most = index[i] > most ? index[i] : most;
  if (most >= P) return TANDEM_BAD_INDEX;
  parallel_for(T, 4 * k, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = t * k; i < t * k + k; ++i)
        values[i] = index[i] < 0 ? -1 : a[t * P + index[i]];
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::aux_take

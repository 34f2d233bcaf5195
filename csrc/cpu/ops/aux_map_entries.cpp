// aux_map_entries: entry numbers of requests to slots.
//
//   entries  i32 [T, P]          negative: none
//   slot     i32 [T]             request of the row; negative: padding
//   table    i32 [R, C]          blocks of the requests; negative: not held
//   out      i32 [T, P]          out; -1 for none
//   size     entries of a block
#include "paging.h"
#include "parallel.h"
#include "tandem.h"

namespace tandem::TANDEM_ISA::ops::aux_map_entries {

int32_t run(const int32_t *entries, const int32_t *slot, const int32_t *table, int32_t *out,
            int64_t T, int64_t P, int64_t R, int64_t C, int64_t size) {
  if (T < 0 || P < 0 || R < 0 || C < 1) return TANDEM_BAD_SHAPE;
  if (size < 1) return TANDEM_BAD_VALUE;
  if (T && P && (!entries || !slot || !table || !out)) return TANDEM_NULL_POINTER;
  if (!requests_inside(slot, T, R)) return TANDEM_BAD_INDEX;
  const Blocks blocks(size);
  parallel_for(T, 4 * P, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = t * P; i < (t + 1) * P; ++i) {
        const int32_t entry = entries[i];
        const bool found = entry >= 0 && slot[t] >= 0;
        out[i] = found ? blocks.slot(table[slot[t] * C + clamped(blocks.of(entry), C)], entry) : -1;
      }
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::aux_map_entries

// aux_entry_slots: where the cache entry goes that a row completes.
//
//   positions  i32 [T]
//   slot       i32 [T]             request of the row; negative: padding
//   table      i32 [R, C]          blocks of the requests; negative: not held
//   out        i32 [T]             out; -1 where the row completes none or its block is not held
//   size       entries of a block
//   ratio      positions of an entry
//   wrap       0 or 1: block b stands in column b mod C
#include "paging.h"
#include "tandem.h"

namespace tandem::TANDEM_ISA::ops::aux_entry_slots {

int32_t run(const int32_t *positions, const int32_t *slot, const int32_t *table, int32_t *out,
            int64_t T, int64_t R, int64_t C, int64_t size, int64_t ratio, int64_t wrap) {
  if (T < 0 || R < 0 || C < 1) return TANDEM_BAD_SHAPE;
  if (size < 1 || ratio < 1) return TANDEM_BAD_VALUE;
  if (T && (!positions || !slot || !table || !out)) return TANDEM_NULL_POINTER;
  if (!requests_inside(slot, T, R)) return TANDEM_BAD_INDEX;
  const Blocks blocks(size), entries(ratio);
  for (int64_t t = 0; t < T; ++t) {
    const int64_t position = positions[t], entry = entries.of(position);
    out[t] = -1;
    if (slot[t] < 0 || entries.of(position + 1) == entry) continue;
    const int64_t block = blocks.of(entry);
    const int64_t column = wrap ? modulo(block, C) : clamped(block, C);
    out[t] = blocks.slot(table[slot[t] * C + column], entry);
  }
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::aux_entry_slots

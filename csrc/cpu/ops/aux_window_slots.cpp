// aux_window_slots: the window that a row reads.
//
//   positions  i32 [T]
//   slot       i32 [T]             request of the row; negative: padding
//   table      i32 [R, C]          blocks of the requests' windows, block b in column b mod C;
//                                  negative: not held
//   first      i32 [R]             lowest position that has an entry
//   out        i32 [T, W]          out: slots of positions p - W + 1 to p; -1 for none
//   size       entries of a block
#include "paging.h"
#include "parallel.h"
#include "tandem.h"

namespace tandem::TANDEM_ISA::ops::aux_window_slots {

// Positions read .. read + count - 1, none negative, a block at a time.
TANDEM_INLINE void look_up(int64_t read, int64_t count, const int32_t *table, int64_t C,
                           const Blocks &blocks, int64_t size, int32_t *out) {
  for (int64_t i = 0; i < count;) {
    const int64_t block = blocks.of(read + i), rest = (block + 1) * size - read;
    const int64_t end = rest < count ? rest : count;
    const int32_t held = table[modulo(block, C)];
    for (; i < end; ++i)
      out[i] = held < 0 ? -1 : static_cast<int32_t>(held * size + (read + i - block * size));
  }
}

int32_t run(const int32_t *positions, const int32_t *slot, const int32_t *table,
            const int32_t *first, int32_t *out, int64_t T, int64_t R, int64_t C, int64_t size,
            int64_t W) {
  if (T < 0 || W < 0 || R < 0 || C < 1) return TANDEM_BAD_SHAPE;
  if (size < 1) return TANDEM_BAD_VALUE;
  if (T && W && (!positions || !slot || !table || !first || !out)) return TANDEM_NULL_POINTER;
  if (!requests_inside(slot, T, R)) return TANDEM_BAD_INDEX;
  const Blocks blocks(size);
  parallel_for(T, W, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      int32_t *row = out + t * W;
      const int64_t read = positions[t] - W + 1;
      int64_t missing = W;
      if (slot[t] >= 0) {
        const int64_t lowest = first[slot[t]] > 0 ? first[slot[t]] : 0;
        missing = lowest - read < 0 ? 0 : lowest - read < W ? lowest - read : W;
      }
      for (int64_t i = 0; i < missing; ++i) row[i] = -1;
      if (missing < W)
        look_up(read + missing, W - missing, table + slot[t] * C, C, blocks, size, row + missing);
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::aux_window_slots

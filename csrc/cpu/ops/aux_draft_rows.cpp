// aux.draft_rows: the rows of draft blocks, one block for each request.
//
//   anchor     i32 [N]          newest token, negative: none
//   position   i32 [N]          of the anchor
//   slot       i32 [N]          negative: padding
//   ids        i32 [N, B]       out, the anchor, then `noise`
//   positions  i32 [N, B]       out
//   row_slot   i32 [N, B]       out
//   context    i32 [N, B]       out, the last position whose context key exists
//   own        i32 [N, B]       out, where the row's own key goes
//   keys       i32 [N, B, B]    out, the keys of the whole block
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::aux_draft_rows {

int32_t run(const int32_t *anchor, const int32_t *position, const int32_t *slot, int32_t *ids,
            int32_t *positions, int32_t *row_slot, int32_t *context, int32_t *own, int32_t *keys,
            int64_t N, int64_t B, int64_t noise) {
  if (N < 0 || B < 0) return TANDEM_BAD_SHAPE;
  if (N && B &&
      (!anchor || !position || !slot || !ids || !positions || !row_slot || !context || !own ||
       !keys))
    return TANDEM_NULL_POINTER;
  const int32_t block = static_cast<int32_t>(B);
  for (int64_t n = 0; n < N; ++n) {
    const bool alive = slot[n] >= 0 && anchor[n] >= 0;
    for (int32_t i = 0; i < block; ++i) {
      const int64_t at = n * B + i;
      ids[at] = !alive ? 0 : i ? static_cast<int32_t>(noise) : anchor[n];
      positions[at] = alive ? position[n] + i : 0;
      row_slot[at] = alive ? slot[n] : -1;
      context[at] = alive ? position[n] - 1 : 0;
      own[at] = alive ? slot[n] * block + i : -1;
      for (int32_t j = 0; j < block; ++j) keys[at * B + j] = alive ? slot[n] * block + j : -1;
    }
  }
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::aux_draft_rows

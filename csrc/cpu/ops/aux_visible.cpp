// aux.visible: compressed entries that rows see.
//
//   positions  i32 [T]
//   slot       i32 [T]   negative: padding, which sees none
//   lens       i32 [T]   out, (position + 1) / ratio, rounded down
//   ratio      at least 1
#include <cstdint>

#include "tandem.h"

namespace tandem::TANDEM_ISA::ops::aux_visible {

int32_t run(const int32_t *positions, const int32_t *slot, int32_t *lens, int64_t T,
            int64_t ratio) {
  if (T < 0) return TANDEM_BAD_SHAPE;
  if (ratio < 1) return TANDEM_BAD_VALUE;
  if (T && (!positions || !slot || !lens)) return TANDEM_NULL_POINTER;
  for (int64_t t = 0; t < T; ++t) {
    const int64_t next = int64_t{positions[t]} + 1, whole = next / ratio;
    lens[t] = slot[t] < 0 ? 0 : static_cast<int32_t>(whole - (whole * ratio > next));
  }
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::aux_visible

// aux.group_start: position of the first token of the group that a row belongs to.
//
//   positions  i32 [T]
//   starts     i32 [T]   out, position - position mod ratio
//   ratio      at least 1
#include <cstdint>

#include "tandem.h"

namespace tandem::TANDEM_ISA::ops::aux_group_start {

int32_t run(const int32_t *positions, int32_t *starts, int64_t T, int64_t ratio) {
  if (T < 0) return TANDEM_BAD_SHAPE;
  if (ratio < 1) return TANDEM_BAD_VALUE;
  if (T && (!positions || !starts)) return TANDEM_NULL_POINTER;
  for (int64_t t = 0; t < T; ++t) {
    const int64_t rest = positions[t] % ratio;  // has the sign of the position
    starts[t] = static_cast<int32_t>(positions[t] - (rest < 0 ? rest + ratio : rest));
  }
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::aux_group_start

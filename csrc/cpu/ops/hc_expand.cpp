// hc_expand: each row m times.
//
//   x      bf16 [T, H]
//   trunk  bf16 [T, m, H]      out
#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::hc_expand {

int32_t run(const uint16_t *x, uint16_t *trunk, int64_t T, int64_t m, int64_t H) {
  if (T < 0 || m < 1 || H < 1) return TANDEM_BAD_SHAPE;
  if (T && (!x || !trunk)) return TANDEM_NULL_POINTER;
  parallel_for(T * m, 4 * H, [=](int64_t begin, int64_t end) {
    for (int64_t stream = begin; stream < end; ++stream)
      std::memcpy(trunk + stream * H, x + stream / m * H, static_cast<size_t>(H) * sizeof *x);
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::hc_expand

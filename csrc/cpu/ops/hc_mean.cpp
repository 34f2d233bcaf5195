// hc_mean: mean of the streams, summed in order in f32 and divided by m, rounded once.
//
//   trunk  bf16 [T, m, H]
//   x      bf16 [T, H]         out
#include "hyper.h"

namespace tandem::TANDEM_ISA::ops::hc_mean {

int32_t run(const uint16_t *trunk, uint16_t *x, int64_t T, int64_t m, int64_t H) {
  if (T < 0 || m < 1 || H < 1) return TANDEM_BAD_SHAPE;
  if (T && (!trunk || !x)) return TANDEM_NULL_POINTER;
  parallel_for(T, 2 * m * H, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      each_step(0, H, [&](int64_t k, auto step) TANDEM_BODY {
        const uint16_t *row = trunk + t * m * H + k;
        Sum sum(load_some(row, step));
        for (int64_t i = 1; i < m; ++i) sum += load_some(row + i * H, step);
        store_some(x + t * H + k, sum.value() / static_cast<float>(m), step);
      });
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::hc_mean

// hc_collapse: x = sum over the streams of pre[i] * trunk[i], in order, in f32, rounded once.
//
//   trunk  bf16 [T, m, H]      1 <= m <= 8
//   pre    f32 [T, m]
//   x      bf16 [T, H]         out
#include "hyper.h"

namespace tandem::TANDEM_ISA::ops::hc_collapse {

int32_t run(const uint16_t *trunk, const float *pre, uint16_t *x, int64_t T, int64_t m, int64_t H) {
  if (T < 0 || m < 1 || m > kMaxStreams || H < 1) return TANDEM_BAD_SHAPE;
  if (T && (!trunk || !pre || !x)) return TANDEM_NULL_POINTER;
  StreamPass pass{};
  pass.trunk = trunk, pass.pre = pre, pass.x = x, pass.m = m, pass.H = H;
  run_pass(pass, 0, T);
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::hc_collapse

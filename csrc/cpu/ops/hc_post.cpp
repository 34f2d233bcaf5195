// hc_post: new[j] = post[j] * y + sum over i of comb[i, j] * trunk[i], i ascending, in f32, rounded
// once.
//
//   y      bf16 [T, H]
//   trunk  bf16 [T, m, H]      1 <= m <= 8
//   post   f32 [T, m]
//   comb   f32 [T, m, m]
//   mixed  bf16 [T, m, H]      out
#include "hyper.h"

namespace tandem::TANDEM_ISA::ops::hc_post {

int32_t run(const uint16_t *y, const uint16_t *trunk, const float *post, const float *comb,
            uint16_t *mixed, int64_t T, int64_t m, int64_t H) {
  if (T < 0 || m < 1 || m > kMaxStreams || H < 1) return TANDEM_BAD_SHAPE;
  if (T && (!y || !trunk || !post || !comb || !mixed)) return TANDEM_NULL_POINTER;
  StreamPass pass{};
  pass.y = y, pass.before = trunk, pass.post = post, pass.comb = comb, pass.left = mixed;
  pass.m = m, pass.H = H;
  run_pass(pass, 0, T);
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::hc_post

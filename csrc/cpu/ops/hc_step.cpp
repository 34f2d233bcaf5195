// hc_step: hc_post of the sub-layer left, then hc_enter of the next with its pre, in one pass over
// the streams.
//
//   y            bf16 [T, H]         H a multiple of 32
//   trunk        bf16 [T, m, H]
//   left_pre     f32 [T, m]          coefficients of the sub-layer left
//   left_post    f32 [T, m]
//   left_comb    f32 [T, m, m]
//   fn, base, scale, norm_weight     of the sub-layer entered, see hc_enter.cpp
//   partial      f32                 scratch of partial_size elements, see hyper.h
//   left         bf16 [T, m, H]      out: the new streams
//   x, codes, scales, pre, post, comb   out, see hc_enter.cpp
#include "mixing.h"

namespace tandem::TANDEM_ISA::ops::hc_step {

int32_t run(const uint16_t *y, const uint16_t *trunk, const float *left_pre, const float *left_post,
            const float *left_comb, const float *fn, const float *base, const float *scale,
            const float *norm_weight, float *partial, uint16_t *left, uint16_t *x, uint8_t *codes,
            uint8_t *scales, float *pre, float *post, float *comb, int64_t T, int64_t m, int64_t H,
            int64_t partial_size, double norm_eps, double hc_eps, int64_t iters) {
  const StreamPass pass{y, trunk, left_post, left_comb, left, left_pre, x, fn, partial, left, m, H};
  const Mixing mixing{
      base, scale, pre, post, comb, static_cast<float>(norm_eps), static_cast<float>(hc_eps),
      iters};
  const Entering entering{norm_weight, codes, scales};
  return run_mixing(pass, mixing, &entering, T, partial_size);
}

}  // namespace tandem::TANDEM_ISA::ops::hc_step

// hc_enter: collapse with the coefficients of the sub-layer before, norm and quantisation, and the
// coefficients of the sub-layer entered.
//
//   trunk        bf16 [T, m, H]      H a multiple of 32
//   pre_prev     f32 [T, m]
//   fn, base, scale                  see hc_mix.cpp
//   norm_weight  f32 [H]
//   partial      f32                 scratch of partial_size elements, see hyper.h
//   x            bf16 [T, H]         out: normalised; holds the collapsed rows before
//   codes        u8 [T, H]           out, e4m3 of x
//   scales       u8 [T, H / 32]      out
//   pre, post, comb                  out, see hc_mix.cpp
#include "mixing.h"

namespace tandem::TANDEM_ISA::ops::hc_enter {

int32_t run(const uint16_t *trunk, const float *pre_prev, const float *fn, const float *base,
            const float *scale, const float *norm_weight, float *partial, uint16_t *x,
            uint8_t *codes, uint8_t *scales, float *pre, float *post, float *comb, int64_t T,
            int64_t m, int64_t H, int64_t partial_size, double norm_eps, double hc_eps,
            int64_t iters) {
  StreamPass pass{};
  pass.trunk = trunk, pass.pre = pre_prev, pass.x = x;
  pass.fn = fn, pass.partial = partial, pass.m = m, pass.H = H;
  const Mixing mixing{
      base, scale, pre, post, comb, static_cast<float>(norm_eps), static_cast<float>(hc_eps),
      iters};
  const Entering entering{norm_weight, codes, scales};
  return run_mixing(pass, mixing, &entering, T, partial_size);
}

}  // namespace tandem::TANDEM_ISA::ops::hc_enter

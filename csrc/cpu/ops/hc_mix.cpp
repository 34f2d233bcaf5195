// hc_mix: mixing coefficients of the multi-stream residual, one set a row.
//
//   trunk    bf16 [T, m, H]          residual streams, K = m * H values a row
//   fn       f32 [m * m + 2m, K]     projection, rows: m for pre, m for post, m * m for comb
//   base     f32 [m * m + 2m]        offsets in the same order
//   scale    f32 [3]                 factors of the pre, post and comb parts
//   partial  f32                     scratch of partial_size elements, see hyper.h
//   pre      f32 [T, m]              out: sigmoid(mix * scale[0] + base) + hc_eps
//   post     f32 [T, m]              out: 2 * sigmoid(mix * scale[1] + base)
//   comb     f32 [T, m, m]           out: Sinkhorn-normalised softmax over the last dimension
//
// mix = (fn . x) / sqrt(mean(x^2) + norm_eps) with the mean over all K values.
// comb is softmax + hc_eps, then divided by (column sums + hc_eps), then iters - 1 times by
// (row sums + hc_eps) and by (column sums + hc_eps).
//
// All arithmetic is f32 without fused multiply-add. The order of sums over K stands in hyper.h;
// sums over m run in index order. NaN in a row of trunk makes that row's outputs NaN and no
// other's. Ranges: 1 <= m <= 8, H >= 1, iters >= 1, norm_eps >= 0, hc_eps >= 0.
#include "mixing.h"

namespace tandem::TANDEM_ISA::ops::hc_mix {

int32_t run(const uint16_t *trunk, const float *fn, const float *base, const float *scale,
            float *partial, float *pre, float *post, float *comb, int64_t T, int64_t m, int64_t H,
            int64_t partial_size, double norm_eps, double hc_eps, int64_t iters) {
  StreamPass pass{};
  pass.trunk = trunk;
  pass.fn = fn, pass.partial = partial, pass.m = m, pass.H = H;
  const Mixing mixing{
      base, scale, pre, post, comb, static_cast<float>(norm_eps), static_cast<float>(hc_eps),
      iters};
  return run_mixing(pass, mixing, nullptr, T, partial_size);
}

}  // namespace tandem::TANDEM_ISA::ops::hc_mix

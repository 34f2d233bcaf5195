// hc_step: one pass over the trunk leaves a sub-layer and enters the next, then norm and
// coefficients in one launch. Between the two the collapsed rows lie where x will, and are
// normalised in place.
#include "hc_step.h"

#include "_finish.h"

namespace {

__global__ __vector__ void hc_step_pass_kernel(Gm<bfloat16_t> trunk, Gm<bfloat16_t> y,
                                               Gm<float> post, Gm<float> comb, Gm<float> pre,
                                               Gm<float> fn, Gm<bfloat16_t> mixed, Gm<bfloat16_t> x,
                                               Gm<float> partial, hyper::Split split) {
  hyper::TrunkPass<true, true, true>().run({trunk, y, post, comb, pre, fn, mixed, x, partial},
                                           split);
}

__global__ __vector__ void hc_step_kernel(Gm<float> partial, Gm<float> base, Gm<float> scale,
                                          Gm<float> pre, Gm<float> post, Gm<float> comb,
                                          Gm<bfloat16_t> x, Gm<float> norm_weight,
                                          Gm<uint8_t> codes, Gm<uint8_t> scales,
                                          hyper::Mixing mixing, uint32_t width) {
  hyper::finish({partial, base, scale, pre, post, comb}, mixing, {x, norm_weight, x, codes, scales},
                width);
}

}  // namespace

int32_t tandem_ascend_hc_step(const tandem_ascend_device *device, void *stream, const uint16_t *y,
                              const uint16_t *trunk, const float *pre_prev, const float *post_prev,
                              const float *comb_prev, const float *fn, const float *base,
                              const float *scale, const float *norm_weight, float *partial,
                              uint16_t *left, uint16_t *x, uint8_t *codes, uint8_t *scales,
                              float *pre, float *post, float *comb, int64_t rows, int32_t m,
                              int32_t width, float norm_eps, float hc_eps, int32_t iterations,
                              int32_t columns, int32_t tile, int32_t row_pieces,
                              int32_t output_pieces, int32_t mixed) {
  const hyper::Split split{
      rows,           uint32_t(m),          uint32_t(width),        uint32_t(columns),
      uint32_t(tile), uint32_t(row_pieces), uint32_t(output_pieces)};
  if (int32_t status = hyper::check_split<true, true, true>(device, split)) return status;
  const hyper::Mixing mixing = hyper::mixing_of(split, mixed, norm_eps, hc_eps, iterations);
  if (int32_t status = hyper::check_finish(device, mixing, split.width)) return status;
  if (rows == 0) return TANDEM_OK;
  const Gm<float> sums = gm_cast<float>(partial);
  const Gm<bfloat16_t> collapsed = gm_cast<bfloat16_t>(x);
  if (int32_t status = TANDEM_LAUNCH(hc_step_pass_kernel, hyper::pass_blocks(device, split), stream,
                                     gm_cast<bfloat16_t>(trunk), gm_cast<bfloat16_t>(y),
                                     gm_cast<float>(post_prev), gm_cast<float>(comb_prev),
                                     gm_cast<float>(pre_prev), gm_cast<float>(fn),
                                     gm_cast<bfloat16_t>(left), collapsed, sums, split))
    return status;
  return TANDEM_LAUNCH(hc_step_kernel, hyper::finish_blocks(device, mixing), stream, sums,
                       gm_cast<float>(base), gm_cast<float>(scale), gm_cast<float>(pre),
                       gm_cast<float>(post), gm_cast<float>(comb), collapsed,
                       gm_cast<float>(norm_weight), gm_cast<uint8_t>(codes),
                       gm_cast<uint8_t>(scales), mixing, split.width);
}

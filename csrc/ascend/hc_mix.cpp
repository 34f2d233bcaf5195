// hc_mix: the pass over the trunk that projects it, then coefficients from the partial sums.
#include "hc_mix.h"

#include "_mixing.h"

namespace {

using namespace AscendC;

__global__ __vector__ void hc_mix_pass_kernel(Gm<bfloat16_t> trunk, Gm<float> fn, Gm<float> partial,
                                              hyper::Split split) {
  hyper::Operands operands{};
  operands.trunk = trunk;
  operands.fn = fn;
  operands.partial = partial;
  hyper::TrunkPass<false, false, true>().run(operands, split);
}

__global__ __vector__ void hc_mix_kernel(Gm<float> partial, Gm<float> base, Gm<float> scale,
                                         Gm<float> pre, Gm<float> post, Gm<float> comb,
                                         hyper::Mixing mixing) {
  TPipe pipe;
  hyper::MixRows mix;
  mix.init(pipe, {partial, base, scale, pre, post, comb}, mixing);
  mix.run(GetBlockIdx(), GetBlockNum());
}

}  // namespace

int32_t tandem_ascend_hc_mix(const tandem_ascend_device *device, void *stream,
                             const uint16_t *trunk, const float *fn, const float *base,
                             const float *scale, float *partial, float *pre, float *post,
                             float *comb, int64_t rows, int32_t m, int32_t width, float norm_eps,
                             float hc_eps, int32_t iterations, int32_t columns, int32_t tile,
                             int32_t row_pieces, int32_t output_pieces, int32_t mixed) {
  const hyper::Split split{
      rows,           uint32_t(m),          uint32_t(width),        uint32_t(columns),
      uint32_t(tile), uint32_t(row_pieces), uint32_t(output_pieces)};
  if (int32_t status = hyper::check_split<false, false, true>(device, split)) return status;
  const hyper::Mixing mixing = hyper::mixing_of(split, mixed, norm_eps, hc_eps, iterations);
  if (!mixing.valid()) return TANDEM_BAD_VALUE;
  if (!::rows::fits(device, mixing.total())) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  const Gm<float> sums = gm_cast<float>(partial);
  if (int32_t status = TANDEM_LAUNCH(hc_mix_pass_kernel, hyper::pass_blocks(device, split), stream,
                                     gm_cast<bfloat16_t>(trunk), gm_cast<float>(fn), sums, split))
    return status;
  return TANDEM_LAUNCH(hc_mix_kernel, ::rows::row_blocks(device, mixing.tasks()), stream, sums,
                       gm_cast<float>(base), gm_cast<float>(scale), gm_cast<float>(pre),
                       gm_cast<float>(post), gm_cast<float>(comb), mixing);
}

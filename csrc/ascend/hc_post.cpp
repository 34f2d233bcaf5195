// hc_post: the pass over the trunk that mixes in a sub-layer's output.
#include "hc_post.h"

#include "_hyper.h"

namespace {

__global__ __vector__ void hc_post_kernel(Gm<bfloat16_t> y, Gm<bfloat16_t> trunk, Gm<float> post,
                                          Gm<float> comb, Gm<bfloat16_t> mixed,
                                          hyper::Split split) {
  hyper::Operands operands{};
  operands.trunk = trunk;
  operands.y = y;
  operands.post = post;
  operands.comb = comb;
  operands.mixed = mixed;
  hyper::TrunkPass<true, false, false>().run(operands, split);
}

}  // namespace

int32_t tandem_ascend_hc_post(const tandem_ascend_device *device, void *stream, const uint16_t *y,
                              const uint16_t *trunk, const float *post, const float *comb,
                              uint16_t *mixed, int64_t rows, int32_t m, int32_t width,
                              int32_t columns, int32_t tile, int32_t row_pieces) {
  const hyper::Split split{
      rows, uint32_t(m), uint32_t(width), uint32_t(columns), uint32_t(tile), uint32_t(row_pieces),
      1};
  if (int32_t status = hyper::check_split<true, false, false>(device, split)) return status;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(hc_post_kernel, hyper::pass_blocks(device, split), stream,
                       gm_cast<bfloat16_t>(y), gm_cast<bfloat16_t>(trunk), gm_cast<float>(post),
                       gm_cast<float>(comb), gm_cast<bfloat16_t>(mixed), split);
}

// hc_post: the pass over the trunk that mixes in a sub-layer's output.
#include "hc_post.h"

#include "_hyper.h"

namespace {

__global__ __vector__ void hc_post_kernel(hyper::Operands operands, hyper::Split split) {
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
  hyper::Operands operands{};
  operands.trunk = gm_cast<bfloat16_t>(trunk);
  operands.y = gm_cast<bfloat16_t>(y);
  operands.post = gm_cast<float>(post);
  operands.comb = gm_cast<float>(comb);
  operands.mixed = gm_cast<bfloat16_t>(mixed);
  return TANDEM_LAUNCH(hc_post_kernel, hyper::pass_blocks(device, split), stream, operands, split);
}

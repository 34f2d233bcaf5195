// hc_collapse: the pass over the trunk that adds its streams up by weight.
#include "hc_collapse.h"

#include "_hyper.h"

namespace {

__global__ __vector__ void hc_collapse_kernel(Gm<bfloat16_t> trunk, Gm<float> pre, Gm<bfloat16_t> x,
                                              hyper::Split split) {
  hyper::Operands operands{};
  operands.trunk = trunk;
  operands.pre = pre;
  operands.x = x;
  hyper::TrunkPass<false, true, false>().run(operands, split);
}

}  // namespace

int32_t tandem_ascend_hc_collapse(const tandem_ascend_device *device, void *stream,
                                  const uint16_t *trunk, const float *pre, uint16_t *x,
                                  int64_t rows, int32_t m, int32_t width, int32_t columns,
                                  int32_t tile, int32_t row_pieces) {
  const hyper::Split split{
      rows, uint32_t(m), uint32_t(width), uint32_t(columns), uint32_t(tile), uint32_t(row_pieces),
      1};
  if (int32_t status = hyper::check_split<false, true, false>(device, split)) return status;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(hc_collapse_kernel, hyper::pass_blocks(device, split), stream,
                       gm_cast<bfloat16_t>(trunk), gm_cast<float>(pre), gm_cast<bfloat16_t>(x),
                       split);
}

// rms_norm: a block takes neighbouring rows one after another.
#include "rms_norm.h"

#include "_norm_rows.h"

namespace {

using namespace AscendC;

__global__ __vector__ void rms_norm_kernel(Gm<bfloat16_t> x, Gm<float> weight, Gm<bfloat16_t> y,
                                           Gm<uint8_t> codes, Gm<uint8_t> scales, int64_t count,
                                           uint32_t width, float eps) {
  TPipe pipe;
  norm::NormRows work;
  work.init(pipe, {x, weight, y, codes, scales}, count, width, eps);
  const rows::Share share = rows::share_of(count);
  work.run(share.first, share.end, 1);
}

}  // namespace

int32_t tandem_ascend_rms_norm(const tandem_ascend_device *device, void *stream, const uint16_t *x,
                               const float *weight, uint16_t *y, uint8_t *codes, uint8_t *scales,
                               int64_t rows, int32_t width, float eps) {
  const bool quantised = codes != nullptr;
  if (rows < 0 || width < 1 || (quantised && (scales == nullptr || width % 32 != 0)))
    return TANDEM_BAD_VALUE;
  if (!::rows::fits(device, norm::room(uint32_t(width), weight != nullptr, quantised)))
    return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(rms_norm_kernel, ::rows::row_blocks(device, rows), stream,
                       gm_cast<bfloat16_t>(x), gm_cast<float>(weight), gm_cast<bfloat16_t>(y),
                       gm_cast<uint8_t>(codes), gm_cast<uint8_t>(scales), rows, uint32_t(width),
                       eps);
}

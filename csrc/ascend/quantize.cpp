// quantize: a block takes rows one after another and encodes each in UB.
#include "quantize.h"

#include "_encoder.h"

namespace {

using namespace AscendC;

template <class Format>
__aicore__ inline void quantize_rows(Gm<bfloat16_t> x, Gm<uint8_t> codes, Gm<uint8_t> scales,
                                     int64_t count, uint32_t width) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> in;
  codec::Encoder<Format> encoder;
  pipe.InitBuffer(in, 2, 2 * rows::whole_steps(width));
  encoder.init(pipe, width);
  rows::keep_infinity_and_nan();
  GlobalTensor<bfloat16_t> from;
  GlobalTensor<uint8_t> code_to, scale_to;
  from.SetGlobalBuffer(x, count * width);
  code_to.SetGlobalBuffer(codes, count * codec::code_bytes<Format>(width));
  scale_to.SetGlobalBuffer(scales, count * codec::scale_bytes<Format>(width));
  const rows::Share share = rows::share_of(count);
  for (int64_t row = share.first; row < share.end; ++row) {
    LocalTensor<bfloat16_t> value = in.AllocTensor<bfloat16_t>();
    rows::load_row(value, from, row * width, width);
    in.EnQue(value);
    value = in.DeQue<bfloat16_t>();
    encoder.encode(Ub<bfloat16_t>(value.GetPhyAddr()));
    in.FreeTensor(value);
    encoder.store_row(code_to, scale_to, row);
  }
}

__global__ __vector__ void quantize_kernel(Gm<bfloat16_t> x, Gm<uint8_t> codes, Gm<uint8_t> scales,
                                           int64_t count, uint32_t width, int32_t format) {
  if (format == codec::kMxfp8)
    quantize_rows<codec::Mxfp8>(x, codes, scales, count, width);
  else if (format == codec::kMxfp4)
    quantize_rows<codec::Mxfp4>(x, codes, scales, count, width);
  else
    quantize_rows<codec::Nvfp4>(x, codes, scales, count, width);
}

}  // namespace

int32_t tandem_ascend_quantize(const tandem_ascend_device *device, void *stream, const uint16_t *x,
                               uint8_t *codes, uint8_t *scales, int64_t rows, int32_t width,
                               int32_t format) {
  if (rows < 0 || !codec::whole_groups(width, format)) return TANDEM_BAD_VALUE;
  const int64_t bytes = int64_t(4) * ::rows::whole_steps(uint32_t(width)) +
                        codec::encoder_bytes(uint32_t(width), format);
  if (!::rows::fits(device, bytes)) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(quantize_kernel, ::rows::row_blocks(device, rows), stream,
                       gm_cast<bfloat16_t>(x), gm_cast<uint8_t>(codes), gm_cast<uint8_t>(scales),
                       rows, uint32_t(width), format);
}

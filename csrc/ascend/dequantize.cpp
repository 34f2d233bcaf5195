// dequantize: a block takes rows one after another and decodes each in UB.
#include "dequantize.h"

#include "_decoder.h"

namespace {

using namespace AscendC;

template <class Format>
__aicore__ inline void dequantize_rows(Gm<uint8_t> codes, Gm<uint8_t> scales, Gm<bfloat16_t> x,
                                       int64_t count, uint32_t width) {
  TPipe pipe;
  TQue<TPosition::VECOUT, 1> out;
  codec::Decoder<Format> decoder;
  decoder.init(pipe, width);
  pipe.InitBuffer(out, 2, codec::decoded_room(width));
  rows::keep_infinity_and_nan();
  const uint32_t code_bytes = codec::code_bytes<Format>(width),
                 scale_bytes = codec::scale_bytes<Format>(width);
  GlobalTensor<uint8_t> code_from, scale_from;
  GlobalTensor<bfloat16_t> to;
  code_from.SetGlobalBuffer(codes, count * code_bytes);
  scale_from.SetGlobalBuffer(scales, count * scale_bytes);
  to.SetGlobalBuffer(x, count * width);
  const rows::Share share = rows::share_of(count);
  for (int64_t row = share.first; row < share.end; ++row) {
    LocalTensor<bfloat16_t> value = out.AllocTensor<bfloat16_t>();
    decoder.decode(code_from, row * code_bytes, scale_from, row * scale_bytes,
                   Ub<bfloat16_t>(value.GetPhyAddr()));
    out.EnQue(value);
    value = out.DeQue<bfloat16_t>();
    rows::store_row(to, row * width, value, width);
    out.FreeTensor(value);
  }
}

__global__ __vector__ void dequantize_kernel(Gm<uint8_t> codes, Gm<uint8_t> scales,
                                             Gm<bfloat16_t> x, int64_t count, uint32_t width,
                                             int32_t format) {
  if (format == codec::kMxfp8)
    dequantize_rows<codec::Mxfp8>(codes, scales, x, count, width);
  else if (format == codec::kMxfp4)
    dequantize_rows<codec::Mxfp4>(codes, scales, x, count, width);
  else
    dequantize_rows<codec::Nvfp4>(codes, scales, x, count, width);
}

}  // namespace

int32_t tandem_ascend_dequantize(const tandem_ascend_device *device, void *stream,
                                 const uint8_t *codes, const uint8_t *scales, uint16_t *x,
                                 int64_t rows, int32_t width, int32_t format) {
  if (rows < 0 || !codec::whole_groups(width, format)) return TANDEM_BAD_VALUE;
  if (!::rows::fits(device, codec::decoder_bytes(uint32_t(width), format))) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(dequantize_kernel, ::rows::row_blocks(device, rows), stream,
                       gm_cast<uint8_t>(codes), gm_cast<uint8_t>(scales), gm_cast<bfloat16_t>(x),
                       rows, uint32_t(width), format);
}

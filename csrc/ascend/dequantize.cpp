// dequantize: a block takes rows one after another and decodes each in UB.
#include "dequantize.h"

#include "_decode.h"

namespace {

using namespace AscendC;

template <class Format>
struct Sizes {
  uint32_t x, codes, scales, factors;

  TANDEM_SHARED explicit Sizes(uint32_t width)
      : x(2 * 2 * rows::whole_steps(width)),
        codes(codec::codes_room<Format>(width)),
        scales(codec::scales_room<Format>(width)),
        factors(codec::factors_room<Format>(width, codec::kDecodeUnits<Format>)) {}

  int64_t total() const { return int64_t(2) * (x + codes + scales) + factors; }
};

template <class Format>
__aicore__ inline void dequantize_rows(Gm<uint8_t> codes, Gm<uint8_t> scales, Gm<bfloat16_t> x,
                                       int64_t count, uint32_t width) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> code_in, scale_in;
  TQue<TPosition::VECOUT, 1> out;
  TBuf<TPosition::VECCALC> factor_buffer;
  const Sizes<Format> sizes(width);
  pipe.InitBuffer(code_in, 2, sizes.codes);
  pipe.InitBuffer(scale_in, 2, sizes.scales);
  pipe.InitBuffer(out, 2, sizes.x);
  pipe.InitBuffer(factor_buffer, sizes.factors);
  rows::keep_infinity_and_nan();
  const uint32_t code_bytes = codec::code_bytes<Format>(width),
                 groups = codec::groups<Format>(width);
  const uint32_t scale_bytes = codec::scale_bytes<Format>(width);
  GlobalTensor<uint8_t> code_from, scale_from;
  GlobalTensor<bfloat16_t> to;
  code_from.SetGlobalBuffer(codes, count * code_bytes);
  scale_from.SetGlobalBuffer(scales, count * scale_bytes);
  to.SetGlobalBuffer(x, count * width);
  const rows::Share share = rows::share_of(count);
  for (int64_t row = share.first; row < share.end; ++row) {
    LocalTensor<uint8_t> code = code_in.AllocTensor<uint8_t>(),
                         scale = scale_in.AllocTensor<uint8_t>();
    rows::load_row(code, code_from, row * code_bytes, code_bytes);
    rows::load_row(scale, scale_from, row * scale_bytes, groups);
    code_in.EnQue(code);
    scale_in.EnQue(scale);
    code = code_in.DeQue<uint8_t>();
    scale = scale_in.DeQue<uint8_t>();
    LocalTensor<bfloat16_t> value = out.AllocTensor<bfloat16_t>();
    codec::decode_row<Format>(Ub<uint8_t>(code.GetPhyAddr()), Ub<uint8_t>(scale.GetPhyAddr()),
                              Ub<float>(factor_buffer.Get<float>().GetPhyAddr()),
                              Ub<bfloat16_t>(value.GetPhyAddr()), width);
    code_in.FreeTensor(code);
    scale_in.FreeTensor(scale);
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

int64_t bytes_needed(uint32_t width, int32_t format) {
  if (format == codec::kMxfp8) return Sizes<codec::Mxfp8>(width).total();
  return format == codec::kMxfp4 ? Sizes<codec::Mxfp4>(width).total()
                                 : Sizes<codec::Nvfp4>(width).total();
}

}  // namespace

int32_t tandem_ascend_dequantize(const tandem_ascend_device *device, void *stream,
                                 const uint8_t *codes, const uint8_t *scales, uint16_t *x,
                                 int64_t rows, int32_t width, int32_t format) {
  if (rows < 0 || !codec::whole_groups(width, format)) return TANDEM_BAD_VALUE;
  if (!::rows::fits(device, bytes_needed(uint32_t(width), format))) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(dequantize_kernel, ::rows::row_blocks(device, rows), stream,
                       gm_cast<uint8_t>(codes), gm_cast<uint8_t>(scales), gm_cast<bfloat16_t>(x),
                       rows, uint32_t(width), format);
}

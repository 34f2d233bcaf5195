// quantize: a block takes rows one after another and encodes each in UB.
#include "quantize.h"

#include "_codec.h"

namespace {

using namespace AscendC;

template <class Format>
struct Sizes {
  uint32_t x, codes, scales, sizes, factors;

  TANDEM_SHARED explicit Sizes(uint32_t width)
      : x(2 * rows::whole_steps(width)),
        codes(codec::codes_room<Format>(width)),
        scales(codec::scales_room<Format>(width)),
        sizes(codec::sizes_room<Format>(width)),
        factors(codec::factors_room<Format>(width, codec::kEncodeUnits<Format>)) {}

  int64_t total() const { return int64_t(2) * (x + codes + scales) + sizes + factors; }
};

template <class Format>
__aicore__ inline void quantize_rows(Gm<bfloat16_t> x, Gm<uint8_t> codes, Gm<uint8_t> scales,
                                     int64_t count, uint32_t width) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> in;
  TQue<TPosition::VECOUT, 1> code_out, scale_out;
  TBuf<TPosition::VECCALC> size_buffer, factor_buffer;
  const Sizes<Format> sizes(width);
  pipe.InitBuffer(in, 2, sizes.x);
  pipe.InitBuffer(code_out, 2, sizes.codes);
  pipe.InitBuffer(scale_out, 2, sizes.scales);
  pipe.InitBuffer(size_buffer, sizes.sizes);
  pipe.InitBuffer(factor_buffer, sizes.factors);
  rows::keep_infinity_and_nan();
  const uint32_t code_bytes = codec::code_bytes<Format>(width),
                 scale_bytes = codec::scale_bytes<Format>(width);
  GlobalTensor<bfloat16_t> from;
  GlobalTensor<uint8_t> code_to, scale_to;
  from.SetGlobalBuffer(x, count * width);
  code_to.SetGlobalBuffer(codes, count * code_bytes);
  scale_to.SetGlobalBuffer(scales, count * scale_bytes);
  const rows::Share share = rows::share_of(count);
  for (int64_t row = share.first; row < share.end; ++row) {
    LocalTensor<bfloat16_t> value = in.AllocTensor<bfloat16_t>();
    rows::load_row(value, from, row * width, width);
    in.EnQue(value);
    value = in.DeQue<bfloat16_t>();
    LocalTensor<uint8_t> code = code_out.AllocTensor<uint8_t>(),
                         scale = scale_out.AllocTensor<uint8_t>();
    codec::encode_row<Format, bfloat16_t>(
        Ub<bfloat16_t>(value.GetPhyAddr()), Ub<uint8_t>(code.GetPhyAddr()),
        Ub<uint8_t>(scale.GetPhyAddr()), Ub<uint32_t>(size_buffer.Get<uint32_t>().GetPhyAddr()),
        Ub<float>(factor_buffer.Get<float>().GetPhyAddr()), width);
    in.FreeTensor(value);
    code_out.EnQue(code);
    scale_out.EnQue(scale);
    code = code_out.DeQue<uint8_t>();
    scale = scale_out.DeQue<uint8_t>();
    rows::store_row(code_to, row * code_bytes, code, code_bytes);
    rows::store_row(scale_to, row * scale_bytes, scale, scale_bytes);
    code_out.FreeTensor(code);
    scale_out.FreeTensor(scale);
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

int64_t bytes_needed(uint32_t width, int32_t format) {
  if (format == codec::kMxfp8) return Sizes<codec::Mxfp8>(width).total();
  return format == codec::kMxfp4 ? Sizes<codec::Mxfp4>(width).total()
                                 : Sizes<codec::Nvfp4>(width).total();
}

}  // namespace

int32_t tandem_ascend_quantize(const tandem_ascend_device *device, void *stream, const uint16_t *x,
                               uint8_t *codes, uint8_t *scales, int64_t rows, int32_t width,
                               int32_t format) {
  if (rows < 0 || !codec::whole_groups(width, format)) return TANDEM_BAD_VALUE;
  if (!::rows::fits(device, bytes_needed(uint32_t(width), format))) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(quantize_kernel, ::rows::row_blocks(device, rows), stream,
                       gm_cast<bfloat16_t>(x), gm_cast<uint8_t>(codes), gm_cast<uint8_t>(scales),
                       rows, uint32_t(width), format);
}

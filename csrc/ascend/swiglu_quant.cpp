// swiglu_quant: a block takes rows one after another; the product of a row stays f32 in UB until it
// is encoded.
#include "swiglu_quant.h"

#include "_encoder.h"

namespace {

using namespace AscendC;
using codec::Mxfp8;
using rows::kStep;

// Gate, up and the row's weight lie in one buffer, one after another.
struct Sizes {
  uint32_t row, in, product;

  TANDEM_SHARED explicit Sizes(uint32_t width)
      : row(2 * rows::whole_steps(width)),
        in(2 * row + 32),
        product(4 * rows::whole_steps(width)) {}

  int64_t total() const { return int64_t(2) * in + product; }
};

template <bool weighted>
__simd_vf__ inline void gated_product(Ub<bfloat16_t> gate, Ub<bfloat16_t> up, Ub<float> weight,
                                      Ub<float> product, uint32_t width, float limit) {
  Reg::RegTensor<float> g, u, divisor, factor;
  if constexpr (weighted) Reg::LoadAlign<float, Reg::LoadDist::DIST_BRC_B32>(factor, weight);
  const uint16_t count = rows::rounds(width);
  for (uint16_t i = 0; i < count; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(width);
    rows::load(g, gate + i * kStep, mask);
    rows::load(u, up + i * kStep, mask);
    Reg::Mins(g, g, limit, mask);
    Reg::Mins(u, u, limit, mask);
    Reg::Maxs(u, u, -limit, mask);
    Reg::Neg(divisor, g, mask);
    Reg::Exp(divisor, divisor, mask);
    Reg::Adds(divisor, divisor, 1.0f, mask);
    Reg::Div(g, g, divisor, mask);
    Reg::Mul(g, g, u, mask);
    if constexpr (weighted) Reg::Mul(g, g, factor, mask);
    Reg::StoreAlign(product + i * kStep, g, mask);
  }
}

class SwigluQuant {
 public:
  __aicore__ inline void run(Gm<bfloat16_t> gate, Gm<bfloat16_t> up, Gm<float> weight,
                             Gm<uint8_t> codes, Gm<uint8_t> scales, int64_t count, uint32_t width,
                             float limit) {
    width_ = width;
    weighted_ = weight != nullptr;
    gate_.SetGlobalBuffer(gate, count * width);
    up_.SetGlobalBuffer(up, count * width);
    if (weighted_) weight_.SetGlobalBuffer(weight, count);
    codes_.SetGlobalBuffer(codes, count * width);
    scales_.SetGlobalBuffer(scales, count * codec::scale_bytes<Mxfp8>(width));
    const Sizes sizes(width);
    up_offset_ = sizes.row / sizeof(bfloat16_t);
    pipe_.InitBuffer(in_, 2, sizes.in);
    pipe_.InitBuffer(product_, sizes.product);
    encoder_.init(pipe_, width);
    rows::keep_infinity_and_nan();
    const rows::Share share = rows::share_of(count);
    for (int64_t row = share.first; row < share.end; ++row) {
      load(row);
      compute(limit);
      encoder_.store_row(codes_, scales_, row);
    }
  }

 private:
  TPipe pipe_;
  TQue<TPosition::VECIN, 1> in_;
  TBuf<TPosition::VECCALC> product_;
  codec::Encoder<Mxfp8> encoder_;
  GlobalTensor<bfloat16_t> gate_, up_;
  GlobalTensor<float> weight_;
  GlobalTensor<uint8_t> codes_, scales_;
  uint32_t width_, up_offset_;
  bool weighted_;

  __aicore__ inline void load(int64_t row) {
    LocalTensor<bfloat16_t> in = in_.AllocTensor<bfloat16_t>();
    rows::load_row(in, gate_, row * width_, width_);
    rows::load_row(in[up_offset_], up_, row * width_, width_);
    if (weighted_) rows::load_row(in[2 * up_offset_].ReinterpretCast<float>(), weight_, row, 1);
    in_.EnQue(in);
  }

  __aicore__ inline void compute(float limit) {
    LocalTensor<bfloat16_t> in = in_.DeQue<bfloat16_t>();
    const Ub<bfloat16_t> gate(in.GetPhyAddr()), up(in[up_offset_].GetPhyAddr());
    const Ub<float> weight(in[2 * up_offset_].GetPhyAddr()),
        product(product_.Get<float>().GetPhyAddr());
    if (weighted_)
      asc_vf_call<gated_product<true>>(gate, up, weight, product, width_, limit);
    else
      asc_vf_call<gated_product<false>>(gate, up, weight, product, width_, limit);
    in_.FreeTensor(in);
    encoder_.encode(product);
  }
};

__global__ __vector__ void swiglu_quant_kernel(Gm<bfloat16_t> gate, Gm<bfloat16_t> up,
                                               Gm<float> weight, Gm<uint8_t> codes,
                                               Gm<uint8_t> scales, int64_t count, uint32_t width,
                                               float limit) {
  SwigluQuant().run(gate, up, weight, codes, scales, count, width, limit);
}

}  // namespace

int32_t tandem_ascend_swiglu_quant(const tandem_ascend_device *device, void *stream,
                                   const uint16_t *gate, const uint16_t *up, const float *weight,
                                   uint8_t *codes, uint8_t *scales, int64_t rows, int32_t width,
                                   float limit) {
  if (rows < 0 || !codec::whole_groups(width, codec::kMxfp8)) return TANDEM_BAD_VALUE;
  const int64_t bytes =
      Sizes(uint32_t(width)).total() + codec::EncoderRoom<Mxfp8>(uint32_t(width)).total();
  if (!::rows::fits(device, bytes)) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(swiglu_quant_kernel, ::rows::row_blocks(device, rows), stream,
                       gm_cast<bfloat16_t>(gate), gm_cast<bfloat16_t>(up), gm_cast<float>(weight),
                       gm_cast<uint8_t>(codes), gm_cast<uint8_t>(scales), rows, uint32_t(width),
                       limit);
}

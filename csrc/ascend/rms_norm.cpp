// rms_norm: a block takes rows one after another; a row is read once into UB and stays there until
// it is written.
#include "rms_norm.h"

#include "_codec.h"

namespace {

using namespace AscendC;
using codec::Mxfp8;
using rows::kStep;

struct Sizes {
  uint32_t x, weight, codes, scales, sizes, factors;

  Sizes(uint32_t width, bool weighted, bool quantised)
      : x(2 * rows::whole_steps(width)),
        weight(weighted ? 4 * rows::whole_steps(width) : 0),
        codes(quantised ? codec::codes_room<Mxfp8>(width) : 0),
        scales(quantised ? codec::scales_room<Mxfp8>(width) : 0),
        sizes(quantised ? codec::sizes_room<Mxfp8>(width) : 0),
        factors(quantised ? codec::factors_room<Mxfp8>(width, codec::kEncodeUnits<Mxfp8>) : 0) {}

  int64_t total() const {
    return int64_t(4) * x + weight + int64_t(2) * (codes + scales) + sizes + factors;
  }
};

// Squares are summed in 64 lanes, then as a tree: the order depends on the width alone.
template <bool weighted>
__simd_vf__ inline void normalise(Ub<bfloat16_t> x, Ub<float> weight, Ub<bfloat16_t> y,
                                  uint32_t width, float eps) {
  Reg::RegTensor<float> value, square, sum, scale, size;
  Reg::MaskReg all = Reg::CreateMask<float>();
  Reg::Duplicate(sum, 0.0f);
  const uint16_t count = uint16_t(rows::steps(width));
  uint32_t left = width;
  for (uint16_t i = 0; i < count; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(left);
    rows::load(value, x + i * kStep, mask);
    Reg::Mul(square, value, value, mask);
    Reg::Add(sum, sum, square, all);
  }
  Reg::Reduce<Reg::ReduceType::SUM>(sum, sum, all);
  Reg::Duplicate(sum, sum, all);
  Reg::Duplicate(size, float(width));
  Reg::Div(sum, sum, size, all);
  Reg::Adds(sum, sum, eps, all);
  Reg::Sqrt(sum, sum, all);
  Reg::Duplicate(size, 1.0f);
  Reg::Div(scale, size, sum, all);
  left = width;
  for (uint16_t i = 0; i < count; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(left);
    rows::load(value, x + i * kStep, mask);
    Reg::Mul(value, value, scale, mask);
    if constexpr (weighted) {
      Reg::LoadAlign(square, weight + i * kStep);
      Reg::Mul(value, value, square, mask);
    }
    rows::store(y + i * kStep, value, mask);
  }
}

class RmsNorm {
 public:
  __aicore__ inline void run(Gm<bfloat16_t> x, Gm<float> weight, Gm<bfloat16_t> y,
                             Gm<uint8_t> codes, Gm<uint8_t> scales, int64_t count, uint32_t width,
                             float eps) {
    width_ = width;
    weighted_ = weight != nullptr;
    quantised_ = codes != nullptr;
    x_.SetGlobalBuffer(x, count * width);
    y_.SetGlobalBuffer(y, count * width);
    prepare();
    if (weighted_) load_weight(weight);
    if (quantised_) {
      codes_.SetGlobalBuffer(codes, count * width);
      scales_.SetGlobalBuffer(scales, count * codec::scale_bytes<Mxfp8>(width));
    }
    const rows::Share share = rows::share_of(count);
    for (int64_t row = share.first; row < share.end; ++row) {
      load(row);
      compute(eps);
      store(row);
    }
  }

 private:
  TPipe pipe_;
  TQue<TPosition::VECIN, 1> in_;
  TQue<TPosition::VECOUT, 1> out_, code_out_, scale_out_;
  TBuf<TPosition::VECCALC> weight_, sizes_, factors_;
  GlobalTensor<bfloat16_t> x_, y_;
  GlobalTensor<uint8_t> codes_, scales_;
  uint32_t width_;
  bool weighted_, quantised_;

  __aicore__ inline void prepare() {
    rows::keep_infinity_and_nan();
    const Sizes sizes(width_, weighted_, quantised_);
    pipe_.InitBuffer(in_, 2, sizes.x);
    pipe_.InitBuffer(out_, 2, sizes.x);
    if (weighted_) pipe_.InitBuffer(weight_, sizes.weight);
    if (!quantised_) return;
    pipe_.InitBuffer(code_out_, 2, sizes.codes);
    pipe_.InitBuffer(scale_out_, 2, sizes.scales);
    pipe_.InitBuffer(sizes_, sizes.sizes);
    pipe_.InitBuffer(factors_, sizes.factors);
  }

  __aicore__ inline void load_weight(Gm<float> weight) {
    GlobalTensor<float> from;
    from.SetGlobalBuffer(weight, width_);
    rows::load_row(weight_.Get<float>(), from, 0, width_);
    const TEventID id = pipe_.FetchEventID<HardEvent::MTE2_V>();
    SetFlag<HardEvent::MTE2_V>(id);
    WaitFlag<HardEvent::MTE2_V>(id);
  }

  __aicore__ inline void load(int64_t row) {
    LocalTensor<bfloat16_t> x = in_.AllocTensor<bfloat16_t>();
    rows::load_row(x, x_, row * width_, width_);
    in_.EnQue(x);
  }

  __aicore__ inline void compute(float eps) {
    LocalTensor<bfloat16_t> x = in_.DeQue<bfloat16_t>();
    LocalTensor<bfloat16_t> y = out_.AllocTensor<bfloat16_t>();
    const Ub<bfloat16_t> from(x.GetPhyAddr()), to(y.GetPhyAddr());
    if (weighted_)
      asc_vf_call<normalise<true>>(from, Ub<float>(weight_.Get<float>().GetPhyAddr()), to, width_,
                                   eps);
    else
      asc_vf_call<normalise<false>>(from, Ub<float>(nullptr), to, width_, eps);
    in_.FreeTensor(x);
    if (quantised_) {
      LocalTensor<uint8_t> codes = code_out_.AllocTensor<uint8_t>(),
                           scales = scale_out_.AllocTensor<uint8_t>();
      codec::encode_row<Mxfp8, bfloat16_t>(to, Ub<uint8_t>(codes.GetPhyAddr()),
                                           Ub<uint8_t>(scales.GetPhyAddr()),
                                           Ub<uint32_t>(sizes_.Get<uint32_t>().GetPhyAddr()),
                                           Ub<float>(factors_.Get<float>().GetPhyAddr()), width_);
      code_out_.EnQue(codes);
      scale_out_.EnQue(scales);
    }
    out_.EnQue(y);
  }

  __aicore__ inline void store(int64_t row) {
    LocalTensor<bfloat16_t> y = out_.DeQue<bfloat16_t>();
    rows::store_row(y_, row * width_, y, width_);
    out_.FreeTensor(y);
    if (!quantised_) return;
    LocalTensor<uint8_t> codes = code_out_.DeQue<uint8_t>(), scales = scale_out_.DeQue<uint8_t>();
    const uint32_t stored = codec::scale_bytes<Mxfp8>(width_);
    rows::store_row(codes_, row * width_, codes, width_);
    rows::store_row(scales_, row * stored, scales, stored);
    code_out_.FreeTensor(codes);
    scale_out_.FreeTensor(scales);
  }
};

__global__ __vector__ void rms_norm_kernel(Gm<bfloat16_t> x, Gm<float> weight, Gm<bfloat16_t> y,
                                           Gm<uint8_t> codes, Gm<uint8_t> scales, int64_t count,
                                           uint32_t width, float eps) {
  RmsNorm().run(x, weight, y, codes, scales, count, width, eps);
}

}  // namespace

int32_t tandem_ascend_rms_norm(const tandem_ascend_device *device, void *stream, const uint16_t *x,
                               const float *weight, uint16_t *y, uint8_t *codes, uint8_t *scales,
                               int64_t rows, int32_t width, float eps) {
  const bool quantised = codes != nullptr;
  if (rows < 0 || width < 1 || (quantised && (scales == nullptr || width % 32 != 0)))
    return TANDEM_BAD_VALUE;
  if (!::rows::fits(device, Sizes(uint32_t(width), weight != nullptr, quantised).total()))
    return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(rms_norm_kernel, ::rows::row_blocks(device, rows), stream,
                       gm_cast<bfloat16_t>(x), gm_cast<float>(weight), gm_cast<bfloat16_t>(y),
                       gm_cast<uint8_t>(codes), gm_cast<uint8_t>(scales), rows, uint32_t(width),
                       eps);
}

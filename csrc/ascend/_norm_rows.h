// Rows normalised by their root mean square, with a quantised copy where one is asked for. A row is
// read once into UB and stays there until it is written.
#pragma once

#include "_encoder.h"
#include "_norm.h"

namespace norm {

using namespace AscendC;
using codec::Mxfp8;

struct Sizes {
  uint32_t x, weight;

  TANDEM_SHARED Sizes(uint32_t width, bool weighted)
      : x(2 * rows::whole_steps(width)), weight(weighted ? 4 * rows::whole_steps(width) : 0) {}
};

// Bytes of UB.
inline int64_t room(uint32_t width, bool weighted, bool quantised) {
  const Sizes sizes(width, weighted);
  const int64_t copy = quantised ? codec::EncoderRoom<Mxfp8>(width).total() : 0;
  return int64_t(4) * sizes.x + sizes.weight + copy;
}

// Null where there is none; y may be x.
struct Operands {
  Gm<bfloat16_t> x;
  Gm<float> weight;
  Gm<bfloat16_t> y;
  Gm<uint8_t> codes, scales;
};

class NormRows {
 public:
  __aicore__ inline void init(TPipe &pipe, const Operands &operands, int64_t count, uint32_t width,
                              float eps) {
    rows::keep_infinity_and_nan();
    width_ = width;
    eps_ = eps;
    weighted_ = operands.weight != nullptr;
    quantised_ = operands.codes != nullptr;
    x_.SetGlobalBuffer(operands.x, count * width);
    y_.SetGlobalBuffer(operands.y, count * width);
    const Sizes sizes(width_, weighted_);
    pipe.InitBuffer(in_, 2, sizes.x);
    pipe.InitBuffer(out_, 2, sizes.x);
    if (weighted_) {
      pipe.InitBuffer(weight_, sizes.weight);
      weights_.SetGlobalBuffer(operands.weight, width);
    }
    if (!quantised_) return;
    codes_.SetGlobalBuffer(operands.codes, count * width);
    scales_.SetGlobalBuffer(operands.scales, count * codec::scale_bytes<Mxfp8>(width));
    encoder_.init(pipe, width);
  }

  // The rows from `first` to before `end`, `step` apart.
  __aicore__ inline void run(int64_t first, int64_t end, int64_t step) {
    if (weighted_ && first < end) load_weight();
    for (int64_t row = first; row < end; row += step) {
      load(row);
      compute();
      store(row);
    }
  }

 private:
  TQue<TPosition::VECIN, 1> in_;
  TQue<TPosition::VECOUT, 1> out_;
  TBuf<TPosition::VECCALC> weight_;
  codec::Encoder<Mxfp8> encoder_;
  GlobalTensor<bfloat16_t> x_, y_;
  GlobalTensor<float> weights_;
  GlobalTensor<uint8_t> codes_, scales_;
  uint32_t width_;
  float eps_;
  bool weighted_, quantised_;

  __aicore__ inline void load_weight() {
    rows::load_row(weight_.Get<float>(), weights_, 0, width_);
    const TEventID id = GetTPipePtr()->FetchEventID<HardEvent::MTE2_V>();
    SetFlag<HardEvent::MTE2_V>(id);
    WaitFlag<HardEvent::MTE2_V>(id);
  }

  __aicore__ inline void load(int64_t row) {
    LocalTensor<bfloat16_t> x = in_.AllocTensor<bfloat16_t>();
    rows::load_row(x, x_, row * width_, width_);
    in_.EnQue(x);
  }

  __aicore__ inline void compute() {
    LocalTensor<bfloat16_t> x = in_.DeQue<bfloat16_t>();
    LocalTensor<bfloat16_t> y = out_.AllocTensor<bfloat16_t>();
    const Ub<bfloat16_t> from(x.GetPhyAddr()), to(y.GetPhyAddr());
    if (weighted_)
      asc_vf_call<rows::normalise<true>>(from, Ub<float>(weight_.Get<float>().GetPhyAddr()), to,
                                         width_, eps_);
    else
      asc_vf_call<rows::normalise<false>>(from, Ub<float>(nullptr), to, width_, eps_);
    in_.FreeTensor(x);
    if (quantised_) encoder_.encode(to);
    out_.EnQue(y);
  }

  __aicore__ inline void store(int64_t row) {
    LocalTensor<bfloat16_t> y = out_.DeQue<bfloat16_t>();
    rows::store_row(y_, row * width_, y, width_);
    out_.FreeTensor(y);
    if (quantised_) encoder_.store_row(codes_, scales_, row);
  }
};

}  // namespace norm

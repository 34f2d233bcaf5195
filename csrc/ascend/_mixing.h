// What follows the pass over a trunk: coefficients from the partial sums of its rows' chunks.
#pragma once

#include "_hyper.h"
#include "_sinkhorn.h"

namespace hyper {

struct Mixing {
  int64_t rows;
  uint32_t m, chunks;
  uint32_t tile;  // rows of a task, a multiple of four
  float width;    // m * H, of the mean of squares
  float norm_eps, hc_eps;
  uint32_t iterations;

  TANDEM_SHARED constexpr int64_t tasks() const { return (rows + tile - 1) / tile; }
  TANDEM_SHARED constexpr uint32_t sums() const { return chunks * tile * kSums * 4; }
  TANDEM_SHARED constexpr uint32_t coefficients() const { return 3 * tile * kRowLanes * 4; }
  constexpr int64_t total() const { return int64_t(2) * (sums() + coefficients()) + 3 * kStep * 4; }
  constexpr bool valid() const {
    return chunks <= 4095 && tile > 0 && tile <= 4092 && tile % kFour == 0 && iterations > 0;
  }
};

// After a pass.
inline Mixing mixing_of(const Split &split, int32_t tile, float norm_eps, float hc_eps,
                        int32_t iterations) {
  const float width = float(split.m) * float(split.width);
  return {split.rows, split.m,  split.chunks(), tile < 0 ? 0 : uint32_t(tile),
          width,      norm_eps, hc_eps,         iterations < 0 ? 0 : uint32_t(iterations)};
}

struct Coefficients {
  Gm<float> partial, base, scale;
  Gm<float> pre, post, comb;
};

class MixRows {
 public:
  __aicore__ inline void init(TPipe &pipe, const Coefficients &operands, const Mixing &mixing) {
    mixing_ = mixing;
    partial_.SetGlobalBuffer(operands.partial);
    base_.SetGlobalBuffer(operands.base);
    scale_.SetGlobalBuffer(operands.scale);
    pre_.SetGlobalBuffer(operands.pre);
    post_.SetGlobalBuffer(operands.post);
    comb_.SetGlobalBuffer(operands.comb);
    pipe.InitBuffer(constants_, 3 * kStep * 4);
    pipe.InitBuffer(in_, 2, mixing.sums());
    pipe.InitBuffer(out_, 2, mixing.coefficients());
  }

  // The tasks from `first` on, `step` apart.
  __aicore__ inline void run(int64_t first, int64_t step) {
    if (first >= mixing_.tasks()) return;
    load_constants();
    for (int64_t task = first; task < mixing_.tasks(); task += step) {
      const int64_t row = task * mixing_.tile, left = mixing_.rows - row;
      const uint32_t number = uint32_t(left < mixing_.tile ? left : mixing_.tile);
      load(row, number);
      compute(number);
      store(row, number);
    }
  }

 private:
  Mixing mixing_;
  TQue<TPosition::VECIN, 1> in_;
  TQue<TPosition::VECOUT, 1> out_;
  TBuf<TPosition::VECCALC> constants_;
  GlobalTensor<float> partial_, base_, scale_, pre_, post_, comb_;

  __aicore__ inline void load_constants() {
    const LocalTensor<float> constants = constants_.Get<float>();
    const uint32_t m = mixing_.m;
    rows::load_row(constants, base_, 0, 2 * m);
    rows::load_row(constants[kStep], base_, 2 * m, m * m);
    rows::load_row(constants[2 * kStep], scale_, 0, 3);
    const TEventID id = GetTPipePtr()->FetchEventID<HardEvent::MTE2_V>();
    SetFlag<HardEvent::MTE2_V>(id);
    WaitFlag<HardEvent::MTE2_V>(id);
  }

  __aicore__ inline void load(int64_t row, uint32_t number) {
    LocalTensor<float> sums = in_.AllocTensor<float>();
    const uint32_t row_bytes = kSums * 4;
    DataCopyPad(sums, partial_[row * kSums],
                {uint16_t(mixing_.chunks), number * row_bytes, (mixing_.rows - number) * row_bytes,
                 (mixing_.tile - number) * row_bytes / 32, 0},
                DataCopyPadExtParams<float>{});
    in_.EnQue(sums);
  }

  template <int M>
  __aicore__ inline void mix(Ub<float> sums, Ub<float> out, uint32_t number) {
    const uint32_t part = mixing_.tile * kRowLanes;
    asc_vf_call<mix_rows<M>>(sums, constants_.Get<float>().GetPhyAddr(), out, out + part,
                             out + 2 * part, number, mixing_.chunks, mixing_.tile * kSums,
                             mixing_.width, mixing_.norm_eps, mixing_.hc_eps, mixing_.iterations);
  }

  __aicore__ inline void compute(uint32_t number) {
    LocalTensor<float> sums = in_.DeQue<float>(), out = out_.AllocTensor<float>();
    const Ub<float> from = sums.GetPhyAddr(), to = out.GetPhyAddr();
    switch (mixing_.m) {
      case 1:
        mix<1>(from, to, number);
        break;
      case 2:
        mix<2>(from, to, number);
        break;
      case 3:
        mix<3>(from, to, number);
        break;
      default:
        mix<4>(from, to, number);
    }
    in_.FreeTensor(sums);
    out_.EnQue(out);
  }

  // The first `count` of each row's sixteen numbers.
  __aicore__ inline void store_part(const GlobalTensor<float> &to, const LocalTensor<float> &from,
                                    int64_t row, uint32_t number, uint32_t count) {
    const uint32_t bytes = count * 4, gap = (kRowLanes * 4 - (bytes + 31) / 32 * 32) / 32;
    DataCopyPad(to[row * count], from, {uint16_t(number), bytes, gap, 0, 0});
  }

  __aicore__ inline void store(int64_t row, uint32_t number) {
    const uint32_t part = mixing_.tile * kRowLanes;
    LocalTensor<float> out = out_.DeQue<float>();
    store_part(pre_, out, row, number, mixing_.m);
    store_part(post_, out[part], row, number, mixing_.m);
    store_part(comb_, out[2 * part], row, number, mixing_.m * mixing_.m);
    out_.FreeTensor(out);
  }
};

}  // namespace hyper

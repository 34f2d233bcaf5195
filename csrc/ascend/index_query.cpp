// index_query: a block takes rows one after another; a row is rotated where it lies in UB, rounded
// to bf16, and encoded from there.
#include "index_query.h"

#include "_encoder.h"
#include "_rotate.h"

namespace {

using namespace AscendC;
using codec::Mxfp4;
using rows::kStep;

// Bytes of the buffers. Pairs are read a register at a time from where they begin, so that a row
// has one more behind it.
struct Sizes {
  uint32_t x, angles;

  TANDEM_SHARED Sizes(uint32_t width, uint32_t turned)
      : x(2 * rows::whole_steps(width) + 4 * kStep),
        angles(2 * 4 * rows::whole_steps(turned / 2)) {}

  int64_t total() const { return int64_t(2) * (x + angles); }
};

// The last `turned` of the `pairs` of each head; cosines and sines have whole registers. A register
// reaches behind its pairs, but never to one that was stored before.
__simd_vf__ inline void rotate_heads(Ub<uint32_t> row, Ub<float> cosines, Ub<float> sines,
                                     uint32_t heads, uint32_t pairs, uint32_t turned) {
  Reg::RegTensor<uint32_t> pair;
  Reg::RegTensor<float> cosine, sine;
  const uint16_t parts = rows::rounds(turned);
  for (uint16_t head = 0; head < uint16_t(heads); ++head) {
    uint32_t left = turned;
    for (uint16_t part = 0; part < parts; ++part) {
      const uint32_t some = left < kStep ? left : kStep;
      const uint32_t at = head * pairs + pairs - turned + part * kStep;
      Reg::MaskReg mask = Reg::UpdateMask<float>(left);
      Reg::LoadAlign(cosine, cosines + part * kStep);
      Reg::LoadAlign(sine, sines + part * kStep);
      Reg::Load(pair, row + at);
      rows::rotate_pairs(pair, cosine, sine, mask);
      Reg::Store(row + at, pair, some);
    }
  }
}

class IndexQuery {
 public:
  __aicore__ inline void run(Gm<bfloat16_t> x, Gm<float> cos_sin, Gm<uint8_t> codes,
                             Gm<uint8_t> scales, int64_t count, uint32_t heads, uint32_t dim,
                             uint32_t turned) {
    heads_ = heads;
    dim_ = dim;
    turned_ = turned;
    const Sizes sizes(width(), turned);
    pipe_.InitBuffer(in_, 2, sizes.x);
    pipe_.InitBuffer(angle_in_, 2, sizes.angles);
    encoder_.init(pipe_, width());
    rows::keep_infinity_and_nan();
    x_.SetGlobalBuffer(x, count * width());
    cos_sin_.SetGlobalBuffer(cos_sin, count * turned);
    codes_.SetGlobalBuffer(codes, count * width() / 2);
    scales_.SetGlobalBuffer(scales, count * width() / Mxfp4::kGroup);
    const rows::Share share = rows::share_of(count);
    for (int64_t row = share.first; row < share.end; ++row) {
      load(row);
      compute();
      encoder_.store_row(codes_, scales_, row);
    }
  }

 private:
  TPipe pipe_;
  TQue<TPosition::VECIN, 1> in_, angle_in_;
  codec::Encoder<Mxfp4> encoder_;
  GlobalTensor<bfloat16_t> x_;
  GlobalTensor<float> cos_sin_;
  GlobalTensor<uint8_t> codes_, scales_;
  uint32_t heads_, dim_, turned_;

  __aicore__ inline uint32_t width() const { return heads_ * dim_; }
  __aicore__ inline uint32_t sines() const { return rows::whole_steps(turned_ / 2); }

  __aicore__ inline void load(int64_t row) {
    LocalTensor<bfloat16_t> x = in_.AllocTensor<bfloat16_t>();
    rows::load_row(x, x_, row * width(), width());
    in_.EnQue(x);
    LocalTensor<float> angles = angle_in_.AllocTensor<float>();
    rows::load_row(angles, cos_sin_, row * turned_, turned_ / 2);
    rows::load_row(angles[sines()], cos_sin_, row * turned_ + turned_ / 2, turned_ / 2);
    angle_in_.EnQue(angles);
  }

  __aicore__ inline void compute() {
    LocalTensor<bfloat16_t> x = in_.DeQue<bfloat16_t>();
    LocalTensor<float> angles = angle_in_.DeQue<float>();
    asc_vf_call<rotate_heads>(Ub<uint32_t>(x.GetPhyAddr()), Ub<float>(angles.GetPhyAddr()),
                              Ub<float>(angles[sines()].GetPhyAddr()), heads_, dim_ / 2,
                              turned_ / 2);
    angle_in_.FreeTensor(angles);
    encoder_.encode(Ub<bfloat16_t>(x.GetPhyAddr()));
    in_.FreeTensor(x);
  }
};

__global__ __vector__ void index_query_kernel(Gm<bfloat16_t> x, Gm<float> cos_sin,
                                              Gm<uint8_t> codes, Gm<uint8_t> scales, int64_t count,
                                              uint32_t heads, uint32_t dim, uint32_t turned) {
  IndexQuery().run(x, cos_sin, codes, scales, count, heads, dim, turned);
}

}  // namespace

int32_t tandem_ascend_index_query(const tandem_ascend_device *device, void *stream,
                                  const uint16_t *x, const float *cos_sin, uint8_t *codes,
                                  uint8_t *scales, int64_t rows, int32_t heads, int32_t dim,
                                  int32_t turned) {
  if (rows < 0 || heads < 1 || dim < 2 || dim % 2 != 0 || turned < 2 || turned > dim ||
      turned % 2 != 0)
    return TANDEM_BAD_VALUE;
  const int64_t width = int64_t(heads) * dim;
  if (width > UINT16_MAX) return TANDEM_TOO_LARGE;
  if (!codec::whole_groups(int32_t(width), codec::kMxfp4)) return TANDEM_BAD_VALUE;
  const int64_t bytes = Sizes(uint32_t(width), uint32_t(turned)).total() +
                        codec::EncoderRoom<Mxfp4>(uint32_t(width)).total();
  if (!::rows::fits(device, bytes)) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(index_query_kernel, ::rows::row_blocks(device, rows), stream,
                       gm_cast<bfloat16_t>(x), gm_cast<float>(cos_sin), gm_cast<uint8_t>(codes),
                       gm_cast<uint8_t>(scales), rows, uint32_t(heads), uint32_t(dim),
                       uint32_t(turned));
}

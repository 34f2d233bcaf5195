// kv_write: a block takes key rows one after another; a row is read once and stays in UB until it
// is written twice, normalised and as an entry.
#include "kv_write.h"

#include "_encoder.h"
#include "_norm.h"
#include "_rotate.h"

namespace {

using namespace AscendC;
using rows::kStep;

// Bytes of the buffers. Pairs are read a register at a time from where they begin, so that a row
// has one more behind it.
struct Sizes {
  uint32_t x, weight, angles;

  TANDEM_SHARED Sizes(uint32_t dim, uint32_t turned)
      : x(2 * rows::whole_steps(dim) + 4 * kStep),
        weight(4 * rows::whole_steps(dim)),
        angles(2 * 4 * rows::whole_steps(turned / 2)) {}

  int64_t total() const { return int64_t(5) * x + weight + int64_t(2) * angles; }
};

// A row whose pairs from `kept` on are rotated; cosines and sines have whole registers.
__simd_vf__ inline void rotate_tail(Ub<uint32_t> from, Ub<uint32_t> to, Ub<float> cosines,
                                    Ub<float> sines, uint32_t kept, uint32_t pairs) {
  Reg::RegTensor<uint32_t> pair;
  Reg::RegTensor<float> cosine, sine;
  const Ub<uint32_t> tail = from + kept, target = to + kept;
  const uint16_t copies = rows::rounds(kept), turns = rows::rounds(pairs);
  for (uint16_t i = 0; i < copies; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<uint32_t>(kept);
    Reg::LoadAlign(pair, from + i * kStep);
    Reg::StoreAlign(to + i * kStep, pair, mask);
  }
  for (uint16_t i = 0; i < turns; ++i) {
    const uint32_t some = pairs < kStep ? pairs : kStep;
    Reg::MaskReg mask = Reg::UpdateMask<float>(pairs);
    Reg::LoadAlign(cosine, cosines + i * kStep);
    Reg::LoadAlign(sine, sines + i * kStep);
    Reg::Load(pair, tail + i * kStep);
    rows::rotate_pairs(pair, cosine, sine, mask);
    Reg::Store(target + i * kStep, pair, some);
  }
}

template <class Format>
class KvWrite {
 public:
  __aicore__ inline void run(Gm<bfloat16_t> x, Gm<float> weight, Gm<float> cos_sin,
                             Gm<bfloat16_t> normed, Gm<uint8_t> cache, Gm<int32_t> slots,
                             int64_t count, uint32_t dim, uint32_t turned, float eps) {
    dim_ = dim;
    turned_ = turned;
    x_.SetGlobalBuffer(x, count * dim);
    normed_.SetGlobalBuffer(normed, count * dim);
    cos_sin_.SetGlobalBuffer(cos_sin, count * turned);
    cache_.SetGlobalBuffer(cache);
    prepare();
    load_weight(weight);
    const rows::Share share = rows::share_of(count);
    for (int64_t row = share.first; row < share.end; ++row) {
      const int32_t slot = slots[row];
      LocalTensor<bfloat16_t> y = out_.AllocTensor<bfloat16_t>();
      normalise(row, y, eps);
      if (slot >= 0) rotate(row, y);
      out_.EnQue(y);
      y = out_.DeQue<bfloat16_t>();
      rows::store_row(normed_, row * dim_, y, dim_);
      out_.FreeTensor(y);
      if (slot < 0) continue;
      encoder_.encode(Ub<bfloat16_t>(turned_row_.Get<bfloat16_t>().GetPhyAddr()));
      encoder_.store_entry(cache_, slot);
    }
  }

 private:
  TPipe pipe_;
  TQue<TPosition::VECIN, 1> in_, angle_in_;
  TQue<TPosition::VECOUT, 1> out_;
  TBuf<TPosition::VECCALC> weight_, turned_row_;
  codec::Encoder<Format> encoder_;
  GlobalTensor<bfloat16_t> x_, normed_;
  GlobalTensor<float> cos_sin_;
  GlobalTensor<uint8_t> cache_;
  uint32_t dim_, turned_;

  __aicore__ inline void prepare() {
    const Sizes sizes(dim_, turned_);
    pipe_.InitBuffer(in_, 2, sizes.x);
    pipe_.InitBuffer(out_, 2, sizes.x);
    pipe_.InitBuffer(turned_row_, sizes.x);
    pipe_.InitBuffer(weight_, sizes.weight);
    pipe_.InitBuffer(angle_in_, 2, sizes.angles);
    encoder_.init(pipe_, dim_);
    rows::keep_infinity_and_nan();
  }

  __aicore__ inline void load_weight(Gm<float> weight) {
    GlobalTensor<float> from;
    from.SetGlobalBuffer(weight, dim_);
    rows::load_row(weight_.Get<float>(), from, 0, dim_);
    const TEventID id = pipe_.FetchEventID<HardEvent::MTE2_V>();
    SetFlag<HardEvent::MTE2_V>(id);
    WaitFlag<HardEvent::MTE2_V>(id);
  }

  __aicore__ inline void normalise(int64_t row, const LocalTensor<bfloat16_t> &y, float eps) {
    LocalTensor<bfloat16_t> x = in_.AllocTensor<bfloat16_t>();
    rows::load_row(x, x_, row * dim_, dim_);
    in_.EnQue(x);
    x = in_.DeQue<bfloat16_t>();
    asc_vf_call<rows::normalise<true>>(Ub<bfloat16_t>(x.GetPhyAddr()),
                                       Ub<float>(weight_.Get<float>().GetPhyAddr()),
                                       Ub<bfloat16_t>(y.GetPhyAddr()), dim_, eps);
    in_.FreeTensor(x);
  }

  __aicore__ inline void rotate(int64_t row, const LocalTensor<bfloat16_t> &y) {
    const uint32_t pairs = turned_ / 2, sines = rows::whole_steps(pairs);
    LocalTensor<float> angles = angle_in_.AllocTensor<float>();
    rows::load_row(angles, cos_sin_, row * turned_, pairs);
    rows::load_row(angles[sines], cos_sin_, row * turned_ + pairs, pairs);
    angle_in_.EnQue(angles);
    angles = angle_in_.DeQue<float>();
    asc_vf_call<rotate_tail>(Ub<uint32_t>(y.GetPhyAddr()),
                             Ub<uint32_t>(turned_row_.Get<uint32_t>().GetPhyAddr()),
                             Ub<float>(angles.GetPhyAddr()), Ub<float>(angles[sines].GetPhyAddr()),
                             dim_ / 2 - pairs, pairs);
    angle_in_.FreeTensor(angles);
  }
};

__global__ __vector__ void kv_write_kernel(Gm<bfloat16_t> x, Gm<float> weight, Gm<float> cos_sin,
                                           Gm<bfloat16_t> normed, Gm<uint8_t> cache,
                                           Gm<int32_t> slots, int64_t count, uint32_t dim,
                                           uint32_t turned, int32_t format, float eps) {
  if (format == codec::kMxfp8)
    KvWrite<codec::Mxfp8>().run(x, weight, cos_sin, normed, cache, slots, count, dim, turned, eps);
  else if (format == codec::kMxfp4)
    KvWrite<codec::Mxfp4>().run(x, weight, cos_sin, normed, cache, slots, count, dim, turned, eps);
  else
    KvWrite<codec::Nvfp4>().run(x, weight, cos_sin, normed, cache, slots, count, dim, turned, eps);
}

}  // namespace

int32_t tandem_ascend_kv_write(const tandem_ascend_device *device, void *stream, const uint16_t *x,
                               const float *weight, const float *cos_sin, uint16_t *normed,
                               uint8_t *cache, const int32_t *slots, int64_t rows, int32_t dim,
                               int32_t turned, int32_t format, float eps) {
  if (rows < 0 || !codec::whole_groups(dim, format) || turned < 2 || turned > dim ||
      turned % 2 != 0)
    return TANDEM_BAD_VALUE;
  const int64_t bytes =
      Sizes(uint32_t(dim), uint32_t(turned)).total() + codec::encoder_bytes(uint32_t(dim), format);
  if (!::rows::fits(device, bytes)) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(kv_write_kernel, ::rows::row_blocks(device, rows), stream,
                       gm_cast<bfloat16_t>(x), gm_cast<float>(weight), gm_cast<float>(cos_sin),
                       gm_cast<bfloat16_t>(normed), gm_cast<uint8_t>(cache),
                       gm_cast<int32_t>(slots), rows, uint32_t(dim), uint32_t(turned), format, eps);
}

// rope: a block takes tiles of heads of a row. What is rotated comes to UB head by head, each at a
// place of its own; what is not goes through UB without being looked at.
#include "rope.h"

#include "_rotate.h"

namespace {

using namespace AscendC;
using rows::kStep;

constexpr uint32_t kMostHeads = 4095;  // blocks of a transfer

TANDEM_SHARED constexpr uint32_t whole_units(uint32_t bytes) { return (bytes + 31) / 32 * 32; }

// Bytes of a head's parts in UB, of the angles, and how many heads make a tile.
struct Tile {
  uint32_t turned, kept, angles, heads;

  // Pairs are read 64 at a time, so the last head of a tile needs room for a register behind it.
  static constexpr uint32_t kBehind = 4 * kStep;

  TANDEM_SHARED Tile(int64_t ub_bytes, uint32_t all_heads, uint32_t dim, uint32_t rotated)
      : turned(whole_units(2 * rotated)),
        kept(whole_units(2 * (dim - rotated))),
        angles(2 * 4 * rows::whole_steps(rotated / 2)),
        heads(0) {
    const int64_t free_bytes = ub_bytes - rows::kSystemUb - 2 * angles - 4 * kBehind;
    const int64_t most = free_bytes < 0 ? 0 : free_bytes / (4 * turned + 2 * kept);
    heads = uint32_t(most < all_heads ? most : all_heads);
    if (heads > kMostHeads) heads = kMostHeads;
  }
};

// Pairs of one head after another; a pair is one element of 32 bits. cos and sin have whole
// registers.
template <bool inverse>
__simd_vf__ inline void rotate(Ub<uint32_t> from, Ub<uint32_t> to, Ub<float> cosines,
                               Ub<float> sines, uint32_t heads, uint32_t stride, uint32_t pairs) {
  Reg::RegTensor<uint32_t> pair;
  Reg::RegTensor<float> cosine, sine;
  const uint16_t parts = rows::rounds(pairs);
  for (uint16_t part = 0; part < parts; ++part) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(pairs);
    Reg::LoadAlign(cosine, cosines + part * kStep);
    Reg::LoadAlign(sine, sines + part * kStep);
    if constexpr (inverse) Reg::Neg(sine, sine, mask);
    for (uint16_t head = 0; head < uint16_t(heads); ++head) {
      const uint32_t at = head * stride + part * kStep;
      Reg::LoadAlign(pair, from + at);
      rows::rotate_pairs(pair, cosine, sine, mask);
      Reg::StoreAlign(to + at, pair, mask);
    }
  }
}

class Rope {
 public:
  __aicore__ inline void run(Gm<bfloat16_t> x, Gm<float> cos_sin, Gm<bfloat16_t> y, int64_t count,
                             uint32_t heads, uint32_t dim, uint32_t turned, Tile tile,
                             bool inverse) {
    heads_ = heads;
    dim_ = dim;
    turned_ = turned;
    x_.SetGlobalBuffer(x, count * heads * dim);
    y_.SetGlobalBuffer(y, count * heads * dim);
    angles_.SetGlobalBuffer(cos_sin, count * turned);
    pipe_.InitBuffer(in_, 2, tile.heads * tile.turned + Tile::kBehind);
    pipe_.InitBuffer(out_, 2, tile.heads * tile.turned + Tile::kBehind);
    pipe_.InitBuffer(angle_in_, 2, tile.angles);
    if (dim > turned) pipe_.InitBuffer(kept_, 2, tile.heads * tile.kept);
    rows::keep_infinity_and_nan();
    const int64_t tiles = (heads + tile.heads - 1) / tile.heads;
    const rows::Share share = rows::share_of(count * tiles);
    for (int64_t task = share.first; task < share.end; ++task) {
      const int64_t row = task / tiles;
      const uint32_t first = uint32_t(task % tiles) * tile.heads;
      const uint32_t some = heads - first < tile.heads ? heads - first : tile.heads;
      const int64_t start = (row * heads + first) * dim;
      copy_kept(start, some);
      load(row, start, some);
      compute(some, tile, inverse);
      store(start, some);
    }
  }

 private:
  TPipe pipe_;
  TQue<TPosition::VECIN, 1> in_, angle_in_;
  TQue<TPosition::VECOUT, 1> out_;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> kept_;
  GlobalTensor<bfloat16_t> x_, y_;
  GlobalTensor<float> angles_;
  uint32_t heads_, dim_, turned_;

  // The same part of each of some heads: its length and the distance to that of the next, in
  // elements.
  __aicore__ inline DataCopyExtParams parts_in(uint32_t heads, uint32_t length) const {
    return {uint16_t(heads), 2 * length, int64_t(2) * (dim_ - length), 0, 0};
  }
  __aicore__ inline DataCopyExtParams parts_out(uint32_t heads, uint32_t length) const {
    return {uint16_t(heads), 2 * length, 0, int64_t(2) * (dim_ - length), 0};
  }

  __aicore__ inline void copy_kept(int64_t start, uint32_t heads) {
    const uint32_t length = dim_ - turned_;
    if (length == 0) return;
    LocalTensor<bfloat16_t> kept = kept_.AllocTensor<bfloat16_t>();
    DataCopyPad(kept, x_[uint64_t(start)], parts_in(heads, length),
                DataCopyPadExtParams<bfloat16_t>{});
    kept_.EnQue(kept);
    kept = kept_.DeQue<bfloat16_t>();
    DataCopyPad(y_[uint64_t(start)], kept, parts_out(heads, length));
    kept_.FreeTensor(kept);
  }

  __aicore__ inline void load(int64_t row, int64_t start, uint32_t heads) {
    LocalTensor<bfloat16_t> in = in_.AllocTensor<bfloat16_t>();
    DataCopyPad(in, x_[uint64_t(start + dim_ - turned_)], parts_in(heads, turned_),
                DataCopyPadExtParams<bfloat16_t>{});
    in_.EnQue(in);
    LocalTensor<float> angles = angle_in_.AllocTensor<float>();
    rows::load_row(angles, angles_, row * turned_, turned_ / 2);
    rows::load_row(angles[rows::whole_steps(turned_ / 2)], angles_, row * turned_ + turned_ / 2,
                   turned_ / 2);
    angle_in_.EnQue(angles);
  }

  __aicore__ inline void compute(uint32_t heads, const Tile &tile, bool inverse) {
    LocalTensor<bfloat16_t> in = in_.DeQue<bfloat16_t>();
    LocalTensor<float> angles = angle_in_.DeQue<float>();
    LocalTensor<bfloat16_t> out = out_.AllocTensor<bfloat16_t>();
    const Ub<uint32_t> from(in.GetPhyAddr()), to(out.GetPhyAddr());
    const Ub<float> cosines(angles.GetPhyAddr()), sines = cosines + rows::whole_steps(turned_ / 2);
    const uint32_t stride = tile.turned / sizeof(uint32_t);
    if (inverse)
      asc_vf_call<rotate<true>>(from, to, cosines, sines, heads, stride, turned_ / 2);
    else
      asc_vf_call<rotate<false>>(from, to, cosines, sines, heads, stride, turned_ / 2);
    in_.FreeTensor(in);
    angle_in_.FreeTensor(angles);
    out_.EnQue(out);
  }

  __aicore__ inline void store(int64_t start, uint32_t heads) {
    LocalTensor<bfloat16_t> out = out_.DeQue<bfloat16_t>();
    DataCopyPad(y_[uint64_t(start + dim_ - turned_)], out, parts_out(heads, turned_));
    out_.FreeTensor(out);
  }
};

__global__ __vector__ void rope_kernel(Gm<bfloat16_t> x, Gm<float> cos_sin, Gm<bfloat16_t> y,
                                       int64_t count, uint32_t heads, uint32_t dim, uint32_t turned,
                                       int64_t ub_bytes, int32_t inverse) {
  Rope().run(x, cos_sin, y, count, heads, dim, turned, Tile(ub_bytes, heads, dim, turned),
             inverse != 0);
}

}  // namespace

int32_t tandem_ascend_rope(const tandem_ascend_device *device, void *stream, const uint16_t *x,
                           const float *cos_sin, uint16_t *y, int64_t rows, int32_t heads,
                           int32_t dim, int32_t turned, int32_t inverse) {
  if (rows < 0 || heads < 1 || dim < 2 || turned < 2 || turned > dim || turned % 2 != 0)
    return TANDEM_BAD_VALUE;
  const Tile tile(device->ub_bytes, uint32_t(heads), uint32_t(dim), uint32_t(turned));
  if (tile.heads == 0) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  const int64_t tasks = rows * ((heads + tile.heads - 1) / tile.heads);
  return TANDEM_LAUNCH(rope_kernel, ::rows::row_blocks(device, tasks), stream,
                       gm_cast<bfloat16_t>(x), gm_cast<float>(cos_sin), gm_cast<bfloat16_t>(y),
                       rows, uint32_t(heads), uint32_t(dim), uint32_t(turned), device->ub_bytes,
                       inverse);
}

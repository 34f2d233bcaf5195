// The pass over the residual streams that the hyper-connection ops share.
//
// A task takes some rows and a chunk of the columns of all streams and does what its op asks for:
// mix in a sub-layer's output, collapse, project. A projection needs all columns of a row, so each
// chunk leaves partial sums, and _mixing.h adds those of a row in the order of the chunks. Where a
// chunk begins depends on the width and the device alone, so a row's bits do not depend on others.
//
// The projection is bound by the vector unit: 24 dot products of f32 against 40 KB of a row. Its
// weights, of which UB holds a chunk for all rows of a task, are read once. Where rows are few,
// tasks also split the outputs, so that all cores take part in reading 2 MB of weights; each then
// does the rest of the work for itself, and the first one stores it.
#pragma once

#include "_projection.h"

namespace hyper {

constexpr uint32_t kMostColumns = 1 << 16;  // of a chunk, so that sizes fit 32 bits
constexpr uint32_t kMostCopies = 4095;      // blocks of a copy

struct Split {
  int64_t rows;
  uint32_t m, width;
  uint32_t columns;        // of a chunk but the last, a multiple of 64
  uint32_t tile;           // rows that UB holds
  uint32_t row_pieces;     // tasks that the tiles of a chunk are dealt to
  uint32_t output_pieces;  // tasks that the groups of outputs are dealt to

  TANDEM_SHARED constexpr uint32_t chunks() const { return (width + columns - 1) / columns; }
  TANDEM_SHARED constexpr int64_t tasks() const {
    return int64_t(chunks()) * row_pieces * output_pieces;
  }
  TANDEM_SHARED constexpr int64_t tiles() const { return (rows + tile - 1) / tile; }
  // Groups of a task, at most.
  constexpr uint32_t groups() const { return (groups_of(m) + output_pieces - 1) / output_pieces; }
  constexpr bool valid() const {
    return rows >= 0 && m > 0 && m <= uint32_t(kMostStreams) && width > 0 && columns > 0 &&
           columns <= kMostColumns && columns % kStep == 0 && tile > 0 && tile <= kMostCopies / m &&
           row_pieces > 0 && output_pieces > 0 && output_pieces <= groups_of(m);
  }
};

TANDEM_SHARED constexpr uint32_t whole_blocks(uint32_t bytes) { return (bytes + 31) / 32 * 32; }

// Places in the buffers of a tile, in bytes.
template <bool kMixes, bool kCollapses, bool kProjects>
struct Room {
  uint32_t y, post, comb, pre, in, x, sums, out, wide, weights;

  constexpr explicit Room(const Split &split)
      : y(split.tile * split.m * split.columns * 2),
        post(y + (kMixes ? split.tile * split.columns * 2 : 0)),
        comb(post + (kMixes ? whole_blocks(split.tile * split.m * 4) : 0)),
        pre(comb + (kMixes ? whole_blocks(split.tile * split.m * split.m * 4) : 0)),
        in(pre + (kCollapses ? whole_blocks(split.tile * split.m * 4) : 0)),
        x(kMixes ? split.tile * split.m * split.columns * 2 : 0),
        sums(x + (kCollapses ? split.tile * split.columns * 2 : 0)),
        out(sums + (kProjects ? split.tile * kSums * 4 : 0)),
        wide(kProjects ? split.tile * split.m * split.columns * 4 : 0),
        weights(kProjects ? split.groups() * kGroup * split.m * split.columns * 4 : 0) {}

  // Results of a projection wait for one another: the dot products take longer than the copies.
  static constexpr uint32_t kOutputs = kProjects ? 1 : 2;
  constexpr int64_t total() const {
    return int64_t(2) * in + int64_t(kOutputs) * out + wide + weights;
  }
};

struct Operands {
  Gm<bfloat16_t> trunk, y;
  Gm<float> post, comb, pre, fn;
  Gm<bfloat16_t> mixed, x;
  Gm<float> partial;
};

template <bool kMixes, bool kCollapses, bool kProjects>
class TrunkPass {
 public:
  __aicore__ inline void run(const Operands &operands, const Split &split) {
    rows::keep_infinity_and_nan();
    split_ = split;
    trunk_.SetGlobalBuffer(operands.trunk);
    y_.SetGlobalBuffer(operands.y);
    post_.SetGlobalBuffer(operands.post);
    comb_.SetGlobalBuffer(operands.comb);
    pre_.SetGlobalBuffer(operands.pre);
    fn_.SetGlobalBuffer(operands.fn);
    mixed_.SetGlobalBuffer(operands.mixed);
    x_.SetGlobalBuffer(operands.x);
    partial_.SetGlobalBuffer(operands.partial);
    const Places places(split);
    pipe_.InitBuffer(in_, 2, places.in);
    pipe_.InitBuffer(out_, Places::kOutputs, places.out);
    if constexpr (kProjects) {
      pipe_.InitBuffer(wide_, places.wide);
      pipe_.InitBuffer(weights_, 1, places.weights);
    }
    for (int64_t task = GetBlockIdx(); task < split.tasks(); task += GetBlockNum())
      pass(uint32_t(task / split.row_pieces), uint32_t(task % split.row_pieces));
  }

 private:
  using Places = Room<kMixes, kCollapses, kProjects>;

  TPipe pipe_;
  TQue<TPosition::VECIN, 1> in_, weights_;
  TQue<TPosition::VECOUT, 1> out_;
  TBuf<TPosition::VECCALC> wide_;
  GlobalTensor<bfloat16_t> trunk_, y_, mixed_, x_;
  GlobalTensor<float> post_, comb_, pre_, fn_, partial_;
  Split split_;
  // Of the task: its chunk, the columns of it, and its groups of outputs.
  uint32_t chunk_, first_, count_, group_, groups_;
  bool stores_;  // what does not depend on the outputs

  // Blocks of `count` elements that lie `width` apart in global memory, a whole chunk apart in UB.
  template <class T>
  __aicore__ inline DataCopyExtParams blocks_in(uint32_t number) const {
    const uint32_t bytes = count_ * sizeof(T);
    const uint32_t gap = (split_.columns * sizeof(T) - whole_blocks(bytes)) / 32;
    return {uint16_t(number), bytes, int64_t(split_.width - count_) * int64_t(sizeof(T)), gap, 0};
  }
  __aicore__ inline DataCopyExtParams blocks_out(uint32_t number) const {
    const DataCopyExtParams in = blocks_in<bfloat16_t>(number);
    return {in.blockCount, in.blockLen, in.dstStride, in.srcStride, 0};
  }

  __aicore__ inline void pass(uint32_t part, uint32_t piece) {
    chunk_ = part / split_.output_pieces;
    first_ = chunk_ * split_.columns;
    count_ = split_.width - first_ < split_.columns ? split_.width - first_ : split_.columns;
    const uint32_t outputs = part % split_.output_pieces, all = groups_of(split_.m);
    group_ = all * outputs / split_.output_pieces;
    groups_ = all * (outputs + 1) / split_.output_pieces - group_;
    stores_ = outputs == 0;
    LocalTensor<float> weights;
    if constexpr (kProjects) weights = load_weights();
    const int64_t end = split_.tiles() * (piece + 1) / split_.row_pieces;
    for (int64_t tile = split_.tiles() * piece / split_.row_pieces; tile < end; ++tile) {
      const int64_t row = tile * split_.tile, left = split_.rows - row;
      const uint32_t number = uint32_t(left < split_.tile ? left : split_.tile);
      load(row, number);
      compute(number, weights);
      store(row, number);
    }
    if constexpr (kProjects) weights_.FreeTensor(weights);
  }

  __aicore__ inline LocalTensor<float> load_weights() {
    LocalTensor<float> weights = weights_.AllocTensor<float>();
    const uint32_t row = split_.m * split_.columns;
    for (uint32_t i = 0; i < groups_ * kGroup; ++i) {
      const int64_t output = output_of(split_.m, group_ + i / kGroup, i % kGroup);
      DataCopyPad(weights[i * row], fn_[output * split_.m * split_.width + first_],
                  blocks_in<float>(split_.m), DataCopyPadExtParams<float>{});
    }
    weights_.EnQue(weights);
    return weights_.DeQue<float>();
  }

  __aicore__ inline void load(int64_t row, uint32_t number) {
    const Places places(split_);
    const int64_t m = split_.m, width = split_.width;
    LocalTensor<bfloat16_t> in = in_.AllocTensor<bfloat16_t>();
    DataCopyPad(in, trunk_[row * m * width + first_], blocks_in<bfloat16_t>(number * split_.m),
                DataCopyPadExtParams<bfloat16_t>{});
    const LocalTensor<float> numbers = in.template ReinterpretCast<float>();
    if constexpr (kMixes) {
      DataCopyPad(in[places.y / 2], y_[row * width + first_], blocks_in<bfloat16_t>(number),
                  DataCopyPadExtParams<bfloat16_t>{});
      rows::load_row(numbers[places.post / 4], post_, row * m, number * split_.m);
      rows::load_row(numbers[places.comb / 4], comb_, row * m * m, number * split_.m * split_.m);
    }
    if constexpr (kCollapses)
      rows::load_row(numbers[places.pre / 4], pre_, row * m, number * split_.m);
    in_.EnQue(in);
  }

  template <int M>
  __aicore__ inline void streams(Ub<bfloat16_t> in, Ub<bfloat16_t> out, Ub<float> wide,
                                 uint32_t number) {
    const Places places(split_);
    const Ub<float> numbers = Ub<float>(in);
    asc_vf_call<pass_streams<M, kMixes, kCollapses, kProjects>>(
        in, in + places.y / 2, numbers + places.post / 4, numbers + places.comb / 4,
        numbers + places.pre / 4, out, out + places.x / 2, wide, Ub<float>(out) + places.sums / 4,
        number, count_, split_.columns, groups_ * kGroup);
  }

  __aicore__ inline void compute(uint32_t number, const LocalTensor<float> &weights) {
    LocalTensor<bfloat16_t> in = in_.DeQue<bfloat16_t>(), out = out_.AllocTensor<bfloat16_t>();
    const Ub<bfloat16_t> from = in.GetPhyAddr(), to = out.GetPhyAddr();
    Ub<float> wide(nullptr);
    if constexpr (kProjects) wide = wide_.Get<float>().GetPhyAddr();
    switch (split_.m) {
      case 1:
        streams<1>(from, to, wide, number);
        break;
      case 2:
        streams<2>(from, to, wide, number);
        break;
      case 3:
        streams<3>(from, to, wide, number);
        break;
      default:
        streams<4>(from, to, wide, number);
    }
    in_.FreeTensor(in);
    if constexpr (kProjects) project(wide, weights.GetPhyAddr(), Ub<float>(to), number);
    out_.EnQue(out);
  }

  // Rows in pairs, which share the loads of weights.
  __aicore__ inline void project(Ub<float> wide, Ub<float> weights, Ub<float> out,
                                 uint32_t number) {
    const Ub<float> sums = out + Places(split_).sums / 4;
    const uint32_t pairs = number / 2, last = pairs * 2;
    if (pairs > 0)
      asc_vf_call<project_rows<2>>(wide, weights, sums, pairs, groups_, split_.m, count_,
                                   split_.columns);
    if (last < number)
      asc_vf_call<project_rows<1>>(wide + last * split_.m * split_.columns, weights,
                                   sums + last * kSums, uint32_t(1), groups_, split_.m, count_,
                                   split_.columns);
  }

  __aicore__ inline void store(int64_t row, uint32_t number) {
    const Places places(split_);
    const int64_t m = split_.m, width = split_.width;
    LocalTensor<bfloat16_t> out = out_.DeQue<bfloat16_t>();
    if constexpr (kMixes)
      if (stores_)
        DataCopyPad(mixed_[row * m * width + first_], out, blocks_out(number * split_.m));
    if constexpr (kCollapses)
      if (stores_) DataCopyPad(x_[row * width + first_], out[places.x / 2], blocks_out(number));
    if constexpr (kProjects) {
      // The sum of squares follows the last group.
      const bool last = group_ + groups_ == groups_of(split_.m);
      const uint32_t bytes = (groups_ * kGroup + (last ? 1 : 0)) * 4, row_bytes = kSums * 4;
      DataCopyPad(partial_[(chunk_ * split_.rows + row) * kSums + group_ * kGroup],
                  out.template ReinterpretCast<float>()[places.sums / 4],
                  {uint16_t(number), bytes, (row_bytes - whole_blocks(bytes)) / 32,
                   int64_t(row_bytes - bytes), 0});
    }
    out_.FreeTensor(out);
  }
};

// Whether UB holds a task; then the blocks that a launch takes.
template <bool kMixes, bool kCollapses, bool kProjects>
inline int32_t check_split(const tandem_ascend_device *device, const Split &split) {
  if (!split.valid()) return TANDEM_BAD_VALUE;
  const int64_t bytes = Room<kMixes, kCollapses, kProjects>(split).total();
  return rows::fits(device, bytes) ? TANDEM_OK : TANDEM_TOO_LARGE;
}

inline int64_t pass_blocks(const tandem_ascend_device *device, const Split &split) {
  return rows::row_blocks(device, split.tasks());
}

}  // namespace hyper

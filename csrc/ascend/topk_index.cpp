// topk_index: a task is a tile of a row, whose values become integers in their order, in UB.
//
// The k-th best is found by its bits from the top: one comparison and one count a step, in
// registers, as keys of a row share their leading bits and bins of a histogram would be few and
// contended. Then SIMT threads give each chosen value its place. Only counts of integers decide, so
// how a row is cut changes no bit.
#include "topk_index.h"

#include "_rows.h"
#include "_select.h"

using namespace AscendC;

namespace {

constexpr int32_t kThreads = 1024;
constexpr int32_t kLargeTile = 8192;  // from which on all threads have work
constexpr int32_t kScratch = 32;      // int32 elements of UB for sums of a block
constexpr int32_t kFound = 64;        // the same for a threshold: a register
constexpr int32_t kSmallUb = 4 * (kScratch + kFound);
constexpr int32_t kSimtUb = 216 * 1024;

template <class Key>
constexpr uint32_t kLanes = 256 / sizeof(Key);

// Keys of +inf, of -inf and of both zeros: bits of a float with the sign set, or all bits turned.
template <class Key>
constexpr Key kSign = Key(1) << (8 * sizeof(Key) - 1);
template <class Key>
constexpr Key kAbove = Key(0xFF800000u >> (32 - 8 * sizeof(Key)));
template <class Key>
constexpr Key kBelow = Key(0x007FFFFFu >> (32 - 8 * sizeof(Key)));

// Bits of `count` values -> keys as `order_key` has them, where they lie. Whole registers are
// written, 0 past the end.
template <class Key>
__simd_vf__ inline void make_keys(Ub<Key> values, uint32_t count) {
  const uint32_t steps = (count + kLanes<Key> - 1) / kLanes<Key>;
  Reg::MaskReg all = Reg::CreateMask<Key>();
  Reg::RegTensor<Key> zero, sign;
  Reg::Duplicate(zero, Key(0));
  Reg::Duplicate(sign, kSign<Key>);
  for (uint32_t i = 0; i < steps; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<Key>(count), chosen;
    Reg::RegTensor<Key> bits, turned, key;
    Reg::LoadAlign(bits, values + i * kLanes<Key>);
    Reg::Not(turned, bits, mask);
    Reg::Or(key, bits, sign, mask);
    Reg::Compares<Key, CMPMODE::GE>(chosen, bits, kSign<Key>, mask);
    Reg::Select(key, turned, key, chosen);
    Reg::Compares<Key, CMPMODE::EQ>(chosen, key, Key(kSign<Key> - 1), mask);
    Reg::Select(key, sign, key, chosen);
    Reg::Compares<Key, CMPMODE::GT>(chosen, key, kAbove<Key>, mask);
    Reg::Select(key, zero, key, chosen);
    Reg::Compares<Key, CMPMODE::LE>(chosen, key, kBelow<Key>, mask);
    Reg::Select(key, zero, key, chosen);
    Reg::StoreAlign(values + i * kLanes<Key>, key, all);
  }
}

// A number in every lane of the width of keys.
__simd_callee__ inline void spread(Reg::RegTensor<uint32_t> &level,
                                   Reg::RegTensor<uint32_t> &number, Reg::MaskReg &) {
  Reg::Move(level, number);
}
__simd_callee__ inline void spread(Reg::RegTensor<uint16_t> &level,
                                   Reg::RegTensor<uint32_t> &number, Reg::MaskReg &all) {
  Reg::RegTensor<uint32_t> &pair = rows::as<uint32_t>(level);
  Reg::ShiftLefts(pair, number, int16_t(16), all);
  Reg::Or(pair, pair, number, all);
}

// The largest number that at least k of the keys reach, 0 where at most k - 1 are above 0.
template <class Key>
__simd_vf__ inline void find_threshold(Ub<Key> keys, Ub<uint32_t> found, uint32_t count,
                                       uint32_t k) {
  const uint32_t steps = (count + kLanes<Key> - 1) / kLanes<Key>;
  Reg::MaskReg all = Reg::CreateMask<Key>(), words = Reg::CreateMask<uint32_t>(), reaches;
  Reg::RegTensor<uint32_t> threshold, candidate, bit, total;
  Reg::RegTensor<Key> key, level, one, reached;
  Reg::Duplicate(threshold, 0u);
  Reg::Duplicate(bit, uint32_t(kSign<Key>));
  Reg::Duplicate(one, Key(1));
  for (uint32_t i = 0; i < 8 * sizeof(Key); ++i) {
    Reg::Or(candidate, threshold, bit, words);
    spread(level, candidate, words);
    Reg::Duplicate(reached, Key(0));
    for (uint32_t j = 0; j < steps; ++j) {
      Reg::LoadAlign(key, keys + j * kLanes<Key>);
      Reg::Compare<Key, CMPMODE::GE>(reaches, key, level, all);
      Reg::Add<Key, Reg::MaskMergeMode::MERGING>(reached, reached, one, reaches);
    }
    Reg::Reduce<Reg::ReduceType::SUM>(total, reached, all);
    Reg::Duplicate(total, total, words);
    Reg::Compares<uint32_t, CMPMODE::GE>(reaches, total, k, words);
    Reg::Select(threshold, candidate, threshold, reaches);
    Reg::ShiftRights(bit, bit, int16_t(1), words);
  }
  Reg::StoreAlign<uint32_t, Reg::StoreDist::DIST_FIRST_ELEMENT_B32>(found, threshold, words);
}

__simt_callee__ inline uint32_t key_of(uint32_t bits) { return order_key(__uint_as_float(bits)); }
__simt_callee__ inline uint16_t key_of(uint16_t bits) {
  return uint16_t(order_key(__uint_as_float(uint32_t(bits) << 16)) >> 16);
}

// Keys of the values that an index names. Whole registers are written, 0 past the end.
template <class Key>
__simt_vf__ __launch_bounds__(kThreads) inline void gather_keys(Gm<Key> values, Gm<int32_t> index,
                                                                Ub<Key> keys, Ub<int32_t> columns,
                                                                int32_t count, int32_t filled) {
  for (int32_t i = int32_t(threadIdx.x); i < filled; i += int32_t(blockDim.x)) {
    const int32_t column = i < count ? int32_t(index[i]) : -1;
    columns[i] = column;
    keys[i] = column < 0 ? Key(0) : key_of(Key(values[column]));
  }
}

// The columns of all keys above the threshold, and of the first of those equal to it, k in all. A
// warp takes keys that lie next to one another. Columns count from `first`, or stand in a list.
template <class Key, bool kListed>
__simt_vf__ __launch_bounds__(kThreads) inline void place_chosen(Ub<Key> keys, Ub<int32_t> columns,
                                                                 Ub<uint32_t> found,
                                                                 Ub<int32_t> scratch,
                                                                 Gm<int32_t> out, int32_t first,
                                                                 int32_t count, int32_t k) {
  const int32_t threads = int32_t(blockDim.x), lane = laneid();
  const int32_t share = (count + threads - 1) / threads * 32;  // keys of a warp
  const int32_t begin = int32_t(threadIdx.x) / 32 * share;
  const uint32_t threshold = found[0];
  int32_t above = 0, level = 0;
  for (int32_t i = begin + lane; i < begin + share && i < count; i += 32) {
    const uint32_t key = keys[i];
    above += key > threshold;
    level += key == threshold && key != 0;
  }
  // A warp's places begin behind those of the warps before it: what its first lane is told.
  int32_t above_until = asc_shfl(block_sum_before(above, scratch), 0);
  int32_t level_until = asc_shfl(block_sum_before(level, scratch), 0);
  const int32_t all_above = block_sum(above, scratch), all_level = block_sum(level, scratch);
  const int32_t wanted = k - all_above;  // of those equal to the threshold
  for (int32_t start = begin; start < begin + share && start < count; start += 32) {
    const int32_t i = start + lane;
    const uint32_t key = i < count ? uint32_t(keys[i]) : 0u;
    const uint32_t candidates = asc_ballot(key != 0 && key >= threshold);
    if (candidates == 0) continue;
    const uint32_t higher = asc_ballot(key > threshold), equal = candidates & ~higher;
    const uint32_t before = uint32_t(lanemask_lt());
    const int32_t ties = level_until + __popc(equal & before);
    const bool is_equal = ((equal >> lane) & 1u) != 0;
    if (key > threshold || (is_equal && ties < wanted)) {
      const int32_t place = above_until + __popc(higher & before) + min(ties, wanted);
      out[place] = kListed ? int32_t(columns[i]) : first + i;
    }
    above_until += __popc(higher);
    level_until += __popc(equal);
  }
  for (int32_t i = all_above + min(all_level, wanted) + int32_t(threadIdx.x); i < k; i += threads)
    out[i] = -1;
}

struct Selection {
  int64_t rows, width, columns;
  int32_t tile, tiles, k;
};

template <class Key>
class Best {
 public:
  __aicore__ inline Best(Gm<Key> values, Gm<int32_t> index, Gm<int32_t> out,
                         const Selection &selection)
      : values_(values), index_(index), out_(out), selection_(selection) {
    const uint32_t bytes = uint32_t(selection.tile) * sizeof(Key);
    if (index == nullptr) {
      pipe_.InitBuffer(tiles_, 2, bytes);
    } else {
      pipe_.InitBuffer(keys_, bytes);
      pipe_.InitBuffer(columns_, selection.tile * sizeof(int32_t));
    }
    pipe_.InitBuffer(scratch_, kScratch * sizeof(int32_t));
    pipe_.InitBuffer(found_, kFound * sizeof(int32_t));
  }

  __aicore__ inline void run() {
    const rows::Share share = rows::share_of(selection_.rows * selection_.tiles);
    for (int64_t task = share.first; task < share.end; ++task) {
      const int64_t row = task / selection_.tiles;
      const int64_t first = task % selection_.tiles * selection_.tile;
      const int64_t left = selection_.columns - first;
      const int32_t count = left < selection_.tile ? int32_t(left) : selection_.tile;
      const Gm<int32_t> out = out_ + task * selection_.k;
      if (index_ == nullptr)
        of_tile(row, first, count, out);
      else
        of_index(row, first, count, out);
    }
  }

 private:
  const Gm<Key> values_;
  const Gm<int32_t> index_, out_;
  const Selection selection_;
  TPipe pipe_;
  TQue<TPosition::VECIN, 1> tiles_;
  TBuf<TPosition::VECCALC> keys_, columns_, scratch_, found_;

  __aicore__ inline dim3 threads() const {
    return dim3(selection_.tile < kLargeTile ? kThreads / 4 : kThreads);
  }

  __aicore__ inline void of_tile(int64_t row, int64_t first, int32_t count, Gm<int32_t> out) {
    LocalTensor<Key> tile = tiles_.template AllocTensor<Key>();
    GlobalTensor<Key> values;
    values.SetGlobalBuffer(values_);
    if (count > 0) rows::load_row(tile, values, row * selection_.width + first, uint32_t(count));
    tiles_.EnQue(tile);
    tile = tiles_.template DeQue<Key>();
    const Ub<Key> keys = tile.GetPhyAddr();
    asc_vf_call<make_keys<Key>>(keys, uint32_t(count));
    choose<false>(keys, Ub<int32_t>(nullptr), int32_t(first), count, out);
    tiles_.FreeTensor(tile);
  }

  __aicore__ inline void of_index(int64_t row, int64_t first, int32_t count, Gm<int32_t> out) {
    const Ub<Key> keys = keys_.template Get<Key>().GetPhyAddr();
    const Ub<int32_t> columns = columns_.Get<int32_t>().GetPhyAddr();
    const int32_t lanes = int32_t(kLanes<Key>), filled = (count + lanes - 1) / lanes * lanes;
    asc_vf_call<gather_keys<Key>>(threads(), values_ + row * selection_.width,
                                  index_ + (row * selection_.columns + first), keys, columns, count,
                                  filled);
    choose<true>(keys, columns, 0, count, out);
  }

  template <bool kListed>
  __aicore__ inline void choose(Ub<Key> keys, Ub<int32_t> columns, int32_t first, int32_t count,
                                Gm<int32_t> out) {
    const Ub<uint32_t> found = found_.Get<uint32_t>().GetPhyAddr();
    asc_vf_call<find_threshold<Key>>(keys, found, uint32_t(count), uint32_t(selection_.k));
    asc_vf_call<place_chosen<Key, kListed>>(threads(), keys, columns, found,
                                            scratch_.Get<int32_t>().GetPhyAddr(), out, first, count,
                                            selection_.k);
  }
};

__global__ __vector__ void topk_kernel_16(Gm<uint16_t> values, Gm<int32_t> index, Gm<int32_t> out,
                                          int64_t rows, int64_t width, int64_t columns,
                                          int32_t tile, int32_t tiles, int32_t k) {
  Best<uint16_t>(values, index, out, {rows, width, columns, tile, tiles, k}).run();
}

__global__ __vector__ void topk_kernel_32(Gm<uint32_t> values, Gm<int32_t> index, Gm<int32_t> out,
                                          int64_t rows, int64_t width, int64_t columns,
                                          int32_t tile, int32_t tiles, int32_t k) {
  Best<uint32_t>(values, index, out, {rows, width, columns, tile, tiles, k}).run();
}

}  // namespace

int32_t tandem_ascend_topk_index(const tandem_ascend_device *device, void *stream,
                                 const void *values, const int32_t *index, int32_t *out,
                                 int64_t rows, int64_t width, int64_t columns, int32_t tile,
                                 int32_t k, int32_t item) {
  if (rows < 0 || columns < 0 || columns > INT32_MAX || width > INT32_MAX || k <= 0)
    return TANDEM_BAD_VALUE;
  if (tile <= 0 || tile % 128 != 0 || (item != 2 && item != 4)) return TANDEM_BAD_VALUE;
  const int64_t bytes = kSmallUb + int64_t(tile) * (index == nullptr ? 2 * item : item + 4);
  if (bytes > kSimtUb || !rows::fits(device, bytes)) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  const int64_t tiles = columns == 0 ? 1 : (columns + tile - 1) / tile;
  const int64_t blocks = rows::row_blocks(device, rows * tiles);
  if (item == 2)
    return TANDEM_LAUNCH_UB(topk_kernel_16, blocks, uint32_t(bytes), stream,
                            gm_cast<uint16_t>(values), gm_cast<int32_t>(index),
                            gm_cast<int32_t>(out), rows, width, columns, tile, int32_t(tiles), k);
  return TANDEM_LAUNCH_UB(topk_kernel_32, blocks, uint32_t(bytes), stream,
                          gm_cast<uint32_t>(values), gm_cast<int32_t>(index), gm_cast<int32_t>(out),
                          rows, width, columns, tile, int32_t(tiles), k);
}

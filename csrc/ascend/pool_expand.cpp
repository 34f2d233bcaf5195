// pool_expand: a task is a part of a row. A register of 64 entries takes the blocks that it belongs
// to from one load, which starts at the first of them.
#include "pool_expand.h"

#include "_move.h"

using namespace AscendC;

namespace {

using rows::as;
using rows::kStep;

// Add a number to lanes that a mask selects.
template <class T>
__simd_callee__ inline void add_where(Reg::RegTensor<T> &value, T number, Reg::MaskReg &chosen,
                                      Reg::MaskReg &all) {
  Reg::RegTensor<T> sum;
  Reg::Adds(sum, value, number, all);
  Reg::Select(value, sum, value, chosen);
}

// `place` counts the entries of a block, `held` the blocks from the first of the task on.
__simd_vf__ inline void expand_blocks(Ub<int32_t> blocks, Ub<int32_t> out, uint32_t count,
                                      int32_t block, int32_t length) {
  Reg::RegTensor<int32_t> place, held, size, entry, missing;
  Reg::RegTensor<uint32_t> lane;
  Reg::MaskReg all = Reg::CreateMask<int32_t>(), carry, seen;
  Reg::Duplicate(missing, int32_t(-1));
  Reg::Duplicate(size, block);
  Reg::Arange(place, int32_t(0));
  Reg::Div(held, place, size, all);
  Reg::Mul(entry, held, size, all);
  Reg::Sub(place, place, entry, all);
  const int32_t whole = int32_t(kStep) / block, rest = int32_t(kStep) % block;
  int32_t first = 0, first_place = 0;  // of the register: its first block and place
  const uint16_t registers = rows::rounds(count);
  for (uint16_t i = 0; i < registers; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<int32_t>(count);
    Reg::Load(entry, blocks + first);
    Reg::Adds(lane, as<uint32_t>(held), uint32_t(-first), all);
    Reg::Gather(entry, entry, lane);
    Reg::Compares<int32_t, CMPMODE::GE>(seen, entry, int32_t(0), mask);
    Reg::Mul(entry, entry, size, mask);
    Reg::Add(entry, entry, place, mask);
    Reg::Compares<int32_t, CMPMODE::LT>(seen, entry, length, seen);
    Reg::Select(entry, entry, missing, seen);
    Reg::StoreAlign(out + i * kStep, entry, mask);
    Reg::Adds(held, held, whole, all);
    Reg::Adds(place, place, rest, all);
    Reg::Compares<int32_t, CMPMODE::GE>(carry, place, block, all);
    add_where(held, int32_t(1), carry, all);
    add_where(place, -block, carry, all);
    first += whole;
    first_place += rest;
    if (first_place >= block) {
      first_place -= block;
      first += 1;
    }
  }
}

struct Pool {
  int64_t rows, count, part;
  int32_t block;

  TANDEM_SHARED constexpr int64_t parts() const { return (count + part - 1) / part; }
};

class Expansion {
 public:
  __aicore__ inline void run(Gm<int32_t> blocks, Gm<int32_t> lens, Gm<int32_t> out,
                             const Pool &pool) {
    blocks_.SetGlobalBuffer(blocks);
    out_.SetGlobalBuffer(out);
    lens_.init(pipe_, lens, pool.rows);
    // The last load of a register begins at any block.
    pipe_.InitBuffer(in_, 2, uint32_t((pool.part + kStep) * sizeof(int32_t)));
    pipe_.InitBuffer(entries_, 2, uint32_t(pool.part * pool.block * sizeof(int32_t)));
    const rows::Share share = rows::share_of(pool.rows * pool.parts());
    for (int64_t task = share.first; task < share.end; ++task)
      expand(pool, task / pool.parts(), task % pool.parts() * pool.part);
  }

 private:
  TPipe pipe_;
  Numbers lens_;
  TQue<TPosition::VECIN, 1> in_;
  TQue<TPosition::VECOUT, 1> entries_;
  GlobalTensor<int32_t> blocks_, out_;

  __aicore__ inline void expand(const Pool &pool, int64_t row, int64_t first) {
    const int64_t left = pool.count - first, place = row * pool.count + first;
    const uint32_t count = uint32_t(left < pool.part ? left : pool.part);
    LocalTensor<int32_t> blocks = in_.AllocTensor<int32_t>();
    rows::load_row(blocks, blocks_, place, count);
    in_.EnQue(blocks);
    blocks = in_.DeQue<int32_t>();
    LocalTensor<int32_t> entries = entries_.AllocTensor<int32_t>();
    asc_vf_call<expand_blocks>(blocks.GetPhyAddr(), entries.GetPhyAddr(), count * pool.block,
                               pool.block, lens_.at(row));
    in_.FreeTensor(blocks);
    entries_.EnQue(entries);
    entries = entries_.DeQue<int32_t>();
    rows::store_row(out_, place * pool.block, entries, count * pool.block);
    entries_.FreeTensor(entries);
  }
};

__global__ __vector__ void pool_expand_kernel(Gm<int32_t> blocks, Gm<int32_t> lens, Gm<int32_t> out,
                                              Pool pool) {
  Expansion().run(blocks, lens, out, pool);
}

}  // namespace

int32_t tandem_ascend_pool_expand(const tandem_ascend_device *device, void *stream,
                                  const int32_t *blocks, const int32_t *lens, int32_t *out,
                                  int64_t rows, int64_t count, int32_t block, int64_t part) {
  if (rows < 0 || count <= 0 || block <= 0 || part <= 0 || part % 8 != 0) return TANDEM_BAD_VALUE;
  const int64_t numbers = 2 * (part + kStep + part * block);
  if (!::rows::fits(device, numbers * sizeof(int32_t) + kWindowBytes)) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  const Pool pool{rows, count, part, block};
  return TANDEM_LAUNCH(pool_expand_kernel, ::rows::row_blocks(device, rows * pool.parts()), stream,
                       gm_cast<int32_t>(blocks), gm_cast<int32_t>(lens), gm_cast<int32_t>(out),
                       pool);
}

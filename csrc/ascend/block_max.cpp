// block_max: a task is a part of a row's blocks. Neighbours are compared until one score is left of
// each block. Scores from the last visible block on decide nothing and are not read.
#include "block_max.h"

#include "_move.h"

using namespace AscendC;

namespace {

constexpr uint32_t kScores = GetVecLen() / sizeof(bfloat16_t);  // of a register
constexpr int64_t kMostBlocks = 16384;  // of a task: they are counted in int16

__simd_callee__ inline uint16_t registers_of(uint32_t count) {
  return uint16_t((count + kScores - 1) / kScores);
}

// Scores without NaN; -inf where the mask leaves them out.
__simd_callee__ inline void clean(Reg::RegTensor<bfloat16_t> &score, Reg::MaskReg &mask,
                                  Reg::RegTensor<bfloat16_t> &lowest) {
  Reg::MaskReg good;
  Reg::Compare<bfloat16_t, CMPMODE::EQ>(good, score, score, mask);
  Reg::Select(score, score, lowest, good);
}

// Blocks of one score: `there` of them are in UB, the others of `count` are -inf.
__simd_vf__ inline void take_scores(Ub<bfloat16_t> scores, Ub<bfloat16_t> best, uint32_t count,
                                    uint32_t there) {
  Reg::RegTensor<bfloat16_t> score, lowest;
  Reg::MaskReg all = Reg::CreateMask<bfloat16_t>();
  Reg::Duplicate(lowest, bfloat16_t(-__builtin_inff()));
  const uint16_t registers = registers_of(count);
  for (uint16_t i = 0; i < registers; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<bfloat16_t>(there);
    Reg::LoadAlign(score, scores + i * kScores);
    clean(score, mask, lowest);
    Reg::StoreAlign(best + i * kScores, score, all);
  }
}

// The larger of each two of `count` scores. The first time they are cleaned, and only `there` of
// them are in UB.
template <bool first>
__simd_vf__ inline void halve(Ub<bfloat16_t> scores, Ub<bfloat16_t> best, uint32_t count,
                              uint32_t there) {
  Reg::RegTensor<bfloat16_t> even, odd, lowest;
  Reg::MaskReg all = Reg::CreateMask<bfloat16_t>(), used;
  Reg::Duplicate(lowest, bfloat16_t(-__builtin_inff()));
  uint32_t left = count / 2, evens = (there + 1) / 2, odds = there / 2;
  const uint16_t registers = registers_of(left);
  for (uint16_t i = 0; i < registers; ++i) {
    Reg::LoadAlign<bfloat16_t, Reg::LoadDist::DIST_DINTLV_B16>(even, odd, scores + i * 2 * kScores);
    if constexpr (first) {
      used = Reg::UpdateMask<bfloat16_t>(evens);
      clean(even, used, lowest);
      used = Reg::UpdateMask<bfloat16_t>(odds);
      clean(odd, used, lowest);
    }
    used = Reg::UpdateMask<bfloat16_t>(left);
    Reg::Max(even, even, odd, used);
    Reg::StoreAlign(best + i * kScores, even, all);
  }
}

// What blocks before number `last` of the task score; +inf for that one, -inf for those after it.
__simd_vf__ inline void settle(Ub<bfloat16_t> best, Ub<bfloat16_t> out, uint32_t count,
                               int16_t last) {
  Reg::RegTensor<bfloat16_t> score, lowest, highest, largest;
  Reg::RegTensor<int16_t> number;
  Reg::MaskReg all = Reg::CreateMask<bfloat16_t>(), chosen;
  Reg::Duplicate(lowest, bfloat16_t(-__builtin_inff()));
  Reg::Duplicate(highest, bfloat16_t(__builtin_inff()));
  Reg::Duplicate(largest, bfloat16_t(0x1.FEp127f));
  const uint16_t registers = registers_of(count);
  for (uint16_t i = 0; i < registers; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<bfloat16_t>(count);
    Reg::Arange(number, int16_t(i * kScores));
    Reg::LoadAlign(score, best + i * kScores);
    Reg::Compares<int16_t, CMPMODE::LT>(chosen, number, last, all);
    Reg::Min(score, score, largest, chosen);
    Reg::Select(score, score, lowest, chosen);
    Reg::Compares<int16_t, CMPMODE::EQ>(chosen, number, last, all);
    Reg::Select(score, highest, score, chosen);
    Reg::StoreAlign(out + i * kScores, score, mask);
  }
}

struct Blocks {
  int64_t rows, width, part;
  int32_t block;

  // Of a row, and parts that it is dealt in.
  TANDEM_SHARED constexpr int64_t count() const { return (width + block - 1) / block; }
  TANDEM_SHARED constexpr int64_t parts() const { return (count() + part - 1) / part; }
  // Scores of a task, and what is left of them after the first step and after the second.
  TANDEM_SHARED constexpr int64_t scores() const { return part * block; }
  TANDEM_SHARED constexpr int64_t once() const { return block == 1 ? part : part * block / 2; }
  TANDEM_SHARED constexpr int64_t twice() const { return part * block / 4; }
};

class BlockMax {
 public:
  __aicore__ inline void run(Gm<bfloat16_t> scores, Gm<int32_t> lens, Gm<bfloat16_t> out,
                             const Blocks &blocks) {
    scores_.SetGlobalBuffer(scores);
    out_.SetGlobalBuffer(out);
    lens_.init(pipe_, lens, blocks.rows);
    pipe_.InitBuffer(in_, 2, uint32_t(blocks.scores() * 2));
    pipe_.InitBuffer(once_, uint32_t(blocks.once() * 2));
    pipe_.InitBuffer(twice_, uint32_t(blocks.twice() * 2));
    pipe_.InitBuffer(result_, 2, uint32_t(blocks.part * 2));
    const rows::Share share = rows::share_of(blocks.rows * blocks.parts());
    for (int64_t task = share.first; task < share.end; ++task)
      find(blocks, task / blocks.parts(), task % blocks.parts() * blocks.part);
  }

 private:
  TPipe pipe_;
  Numbers lens_;
  TQue<TPosition::VECIN, 1> in_;
  TBuf<TPosition::VECCALC> once_, twice_;
  TQue<TPosition::VECOUT, 1> result_;
  GlobalTensor<bfloat16_t> scores_, out_;

  __aicore__ inline void find(const Blocks &blocks, int64_t row, int64_t first) {
    const int64_t left = blocks.count() - first, length = lens_.at(row);
    const int64_t number = left < blocks.part ? left : blocks.part;
    // The last visible block, counted within the task; from -1 to the number of its blocks.
    int64_t last = length > 0 ? (length - 1) / blocks.block - first : -1;
    last = last < -1 ? -1 : last < number ? last : number;
    Ub<bfloat16_t> best = once_.Get<bfloat16_t>().GetPhyAddr();
    if (last > 0) best = largest_of(blocks, row * blocks.width, first, last);
    LocalTensor<bfloat16_t> result = result_.AllocTensor<bfloat16_t>();
    asc_vf_call<settle>(best, result.GetPhyAddr(), uint32_t(number), int16_t(last));
    result_.EnQue(result);
    result = result_.DeQue<bfloat16_t>();
    rows::store_row(out_, row * blocks.count() + first, result, uint32_t(number));
    result_.FreeTensor(result);
  }

  // The largest scores of `number` blocks, from the first of the task on.
  __aicore__ inline Ub<bfloat16_t> largest_of(const Blocks &blocks, int64_t row, int64_t first,
                                              int64_t number) {
    const int64_t begin = first * blocks.block, left = blocks.width - begin;
    uint32_t count = uint32_t(number * blocks.block);
    const uint32_t there = uint32_t(left < count ? left : count);
    LocalTensor<bfloat16_t> scores = in_.AllocTensor<bfloat16_t>();
    rows::load_row(scores, scores_, row + begin, there);
    in_.EnQue(scores);
    scores = in_.DeQue<bfloat16_t>();
    Ub<bfloat16_t> best = once_.Get<bfloat16_t>().GetPhyAddr();
    Ub<bfloat16_t> other = twice_.Get<bfloat16_t>().GetPhyAddr();
    if (blocks.block == 1)
      asc_vf_call<take_scores>(scores.GetPhyAddr(), best, count, there);
    else
      asc_vf_call<halve<true>>(scores.GetPhyAddr(), best, count, there);
    in_.FreeTensor(scores);
    for (int32_t size = blocks.block / 2; size > 1; size /= 2) {
      count /= 2;
      asc_vf_call<halve<false>>(best, other, count, count);
      const Ub<bfloat16_t> filled = other;
      other = best;
      best = filled;
    }
    return best;
  }
};

__global__ __vector__ void block_max_kernel(Gm<bfloat16_t> scores, Gm<int32_t> lens,
                                            Gm<bfloat16_t> out, Blocks blocks) {
  BlockMax().run(scores, lens, out, blocks);
}

}  // namespace

int32_t tandem_ascend_block_max(const tandem_ascend_device *device, void *stream,
                                const uint16_t *scores, const int32_t *lens, uint16_t *out,
                                int64_t rows, int64_t width, int32_t block, int64_t part) {
  if (rows < 0 || width <= 0 || block <= 0 || (block & (block - 1)) != 0) return TANDEM_BAD_VALUE;
  if (part <= 0 || part > kMostBlocks || part % kScores != 0) return TANDEM_BAD_VALUE;
  const Blocks blocks{rows, width, part, block};
  const int64_t numbers = 2 * blocks.scores() + blocks.once() + blocks.twice() + 2 * part;
  if (!::rows::fits(device, 2 * numbers + kWindowBytes)) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(block_max_kernel, ::rows::row_blocks(device, rows * blocks.parts()), stream,
                       gm_cast<bfloat16_t>(scores), gm_cast<int32_t>(lens),
                       gm_cast<bfloat16_t>(out), blocks);
}

// embed: a task is a piece of a row. Rows of bf16 go through UB by copies alone, rows of f32 are
// rounded on their way.
#include "embed.h"

#include "_move.h"

using namespace AscendC;

namespace {

__simd_vf__ inline void round_piece(Ub<float> from, Ub<bfloat16_t> to, uint32_t count) {
  const uint16_t registers = rows::rounds(count);
  for (uint16_t i = 0; i < registers; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(count);
    Reg::RegTensor<float> wide;
    Reg::LoadAlign(wide, from + i * rows::kStep);
    rows::store(to + i * rows::kStep, wide, mask);
  }
}

// Pieces of f32 rows on their way to bf16 rows.
class Rounder {
 public:
  __aicore__ inline void init(TPipe &pipe, Gm<float> from, Gm<bfloat16_t> to, uint32_t columns) {
    from_.SetGlobalBuffer(from);
    to_.SetGlobalBuffer(to);
    const uint32_t whole = rows::whole_steps(columns);  // loads are of registers
    pipe.InitBuffer(in_, 2, whole * sizeof(float));
    pipe.InitBuffer(out_, 2, whole * sizeof(bfloat16_t));
  }

  __aicore__ inline void move(int64_t to, int64_t from, uint32_t columns) {
    LocalTensor<float> wide = in_.AllocTensor<float>();
    DataCopyPad(wide, from_[from], {1, uint32_t(columns * sizeof(float)), 0, 0, 0},
                DataCopyPadExtParams<float>{});
    in_.EnQue(wide);
    wide = in_.DeQue<float>();
    LocalTensor<bfloat16_t> narrow = out_.AllocTensor<bfloat16_t>();
    asc_vf_call<round_piece>(wide.GetPhyAddr(), narrow.GetPhyAddr(), columns);
    in_.FreeTensor(wide);
    out_.EnQue(narrow);
    narrow = out_.DeQue<bfloat16_t>();
    DataCopyPad(to_[to], narrow, {1, uint32_t(columns * sizeof(bfloat16_t)), 0, 0, 0});
    out_.FreeTensor(narrow);
  }

 private:
  GlobalTensor<float> from_;
  GlobalTensor<bfloat16_t> to_;
  TQue<TPosition::VECIN, 1> in_;
  TQue<TPosition::VECOUT, 1> out_;
};

__global__ __vector__ void embed_kernel(Gm<int32_t> ids, Gm<uint8_t> table,
                                        Gm<uint8_t> override_rows, Gm<int32_t> override_index,
                                        Gm<uint8_t> y, Pieces pieces, int32_t override_f32) {
  rows::keep_infinity_and_nan();
  TPipe pipe;
  Numbers tokens, given;
  Mover mover;
  Rounder rounder;
  GlobalTensor<uint8_t> looked_up, replaced, target;
  looked_up.SetGlobalBuffer(table);
  replaced.SetGlobalBuffer(override_rows);
  target.SetGlobalBuffer(y);
  const bool some_given = bool(override_rows) && bool(override_index);
  tokens.init(pipe, ids, pieces.rows);
  if (some_given) given.init(pipe, override_index, pieces.rows);
  mover.init(pipe, uint32_t(pieces.piece));
  if (some_given && override_f32 != 0)
    rounder.init(pipe, Gm<float>(override_rows), Gm<bfloat16_t>(y), uint32_t(pieces.piece / 2));
  const int64_t end = pieces.begin(GetBlockIdx() + 1, GetBlockNum());
  for (int64_t task = pieces.begin(GetBlockIdx(), GetBlockNum()); task < end; ++task) {
    const int64_t row = pieces.row(task), first = pieces.first(task);
    const uint32_t size = pieces.size(task);
    const int64_t to = row * pieces.bytes + first, place = some_given ? given.at(row) : -1;
    if (place < 0)
      mover.move(target[to], looked_up[int64_t(tokens.at(row)) * pieces.bytes + first], size);
    else if (override_f32 == 0)
      mover.move(target[to], replaced[place * pieces.bytes + first], size);
    else
      rounder.move(to / 2, (place * pieces.bytes + first) / 2, size / 2);
  }
}

}  // namespace

int32_t tandem_ascend_embed(const tandem_ascend_device *device, void *stream, const int32_t *ids,
                            const uint16_t *table, const void *override_rows,
                            const int32_t *override_index, uint16_t *y, int64_t rows, int64_t width,
                            int64_t columns, int32_t override_f32) {
  const Pieces pieces{rows, width * 2, columns * 2};
  const int64_t beside =
      2 * kWindowBytes + 12 * ::rows::kStep;  // pieces of f32 are filled up to registers
  if (int32_t status = check_pieces(device, pieces, Mover::kUnderWay + 6, beside)) return status;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(embed_kernel, piece_blocks(device, pieces), stream, gm_cast<int32_t>(ids),
                       gm_cast<uint8_t>(table), gm_cast<uint8_t>(override_rows),
                       gm_cast<int32_t>(override_index), gm_cast<uint8_t>(y), pieces, override_f32);
}

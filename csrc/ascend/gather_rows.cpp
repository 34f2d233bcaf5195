// gather_rows: a task is a piece of a row, which goes through UB by copies alone. Rows that are not
// there are written from a piece of zeros.
#include "gather_rows.h"

#include "_move.h"

using namespace AscendC;

namespace {

constexpr uint32_t kWords = GetVecLen() / sizeof(int32_t);

__simd_vf__ inline void clear_piece(Ub<int32_t> piece, uint32_t count) {
  Reg::RegTensor<int32_t> zero;
  Reg::Duplicate(zero, int32_t(0));
  const uint32_t registers = (count + kWords - 1) / kWords;
  for (uint32_t i = 0; i < registers; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<int32_t>(count);
    Reg::StoreAlign(piece + i * kWords, zero, mask);
  }
}

__global__ __vector__ void gather_rows_kernel(Gm<uint8_t> x, Gm<int32_t> index, Gm<uint8_t> y,
                                              Pieces pieces) {
  TPipe pipe;
  Numbers places;
  Mover mover;
  TBuf<TPosition::VECCALC> zero_piece;
  GlobalTensor<uint8_t> source, target;
  source.SetGlobalBuffer(x);
  target.SetGlobalBuffer(y);
  places.init(pipe, index, pieces.rows);
  mover.init(pipe, uint32_t(pieces.piece));
  pipe.InitBuffer(zero_piece, uint32_t(pieces.piece));
  const LocalTensor<int32_t> zeros = zero_piece.Get<int32_t>();
  asc_vf_call<clear_piece>(zeros.GetPhyAddr(), uint32_t(pieces.piece / sizeof(int32_t)));
  const TEventID id = pipe.FetchEventID<HardEvent::V_MTE3>();
  SetFlag<HardEvent::V_MTE3>(id);
  WaitFlag<HardEvent::V_MTE3>(id);
  const int64_t end = pieces.begin(GetBlockIdx() + 1, GetBlockNum());
  for (int64_t task = pieces.begin(GetBlockIdx(), GetBlockNum()); task < end; ++task) {
    const int64_t row = pieces.row(task), first = pieces.first(task);
    const int64_t place = places.at(row);
    const GlobalTensor<uint8_t> to = target[row * pieces.bytes + first];
    if (place >= 0)
      mover.move(to, source[place * pieces.bytes + first], pieces.size(task));
    else
      DataCopyPad(to, zero_piece.Get<uint8_t>(), {1, pieces.size(task), 0, 0, 0});
  }
}

}  // namespace

int32_t tandem_ascend_gather_rows(const tandem_ascend_device *device, void *stream, const void *x,
                                  const int32_t *index, void *y, int64_t rows, int64_t bytes,
                                  int64_t piece) {
  const Pieces pieces{rows, bytes, piece};
  if (int32_t status = check_pieces(device, pieces, Mover::kUnderWay + 1, kWindowBytes))
    return status;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(gather_rows_kernel, piece_blocks(device, pieces), stream,
                       gm_cast<uint8_t>(x), gm_cast<int32_t>(index), gm_cast<uint8_t>(y), pieces);
}

// scatter_rows: a task is a piece of a row, which goes through UB by copies alone.
#include "scatter_rows.h"

#include "_move.h"

using namespace AscendC;

namespace {

__global__ __vector__ void scatter_rows_kernel(Gm<uint8_t> x, Gm<int32_t> index, Gm<uint8_t> values,
                                               Pieces pieces) {
  TPipe pipe;
  Numbers places;
  Mover mover;
  GlobalTensor<uint8_t> source, target;
  source.SetGlobalBuffer(values);
  target.SetGlobalBuffer(x);
  places.init(pipe, index, pieces.rows);
  mover.init(pipe, uint32_t(pieces.piece));
  const int64_t end = pieces.begin(GetBlockIdx() + 1, GetBlockNum());
  for (int64_t task = pieces.begin(GetBlockIdx(), GetBlockNum()); task < end; ++task) {
    const int64_t row = pieces.row(task), first = pieces.first(task);
    const int64_t place = places.at(row);
    if (place < 0) continue;
    mover.move(target[place * pieces.bytes + first], source[row * pieces.bytes + first],
               pieces.size(task));
  }
}

}  // namespace

int32_t tandem_ascend_scatter_rows(const tandem_ascend_device *device, void *stream, void *x,
                                   const int32_t *index, const void *values, int64_t rows,
                                   int64_t bytes, int64_t piece) {
  const Pieces pieces{rows, bytes, piece};
  if (int32_t status = check_pieces(device, pieces, Mover::kUnderWay, kWindowBytes)) return status;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(scatter_rows_kernel, piece_blocks(device, pieces), stream,
                       gm_cast<uint8_t>(x), gm_cast<int32_t>(index), gm_cast<uint8_t>(values),
                       pieces);
}

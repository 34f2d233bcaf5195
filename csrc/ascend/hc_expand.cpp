// hc_expand: a task is a piece of a row, which is read once and written into all streams.
#include "hc_expand.h"

#include "_move.h"

using namespace AscendC;

namespace {

__global__ __vector__ void hc_expand_kernel(Gm<uint8_t> x, Gm<uint8_t> trunk, int64_t m,
                                            Pieces pieces) {
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> queue;
  GlobalTensor<uint8_t> source, target;
  source.SetGlobalBuffer(x);
  target.SetGlobalBuffer(trunk);
  pipe.InitBuffer(queue, Mover::kUnderWay, uint32_t(pieces.piece));
  const int64_t end = pieces.begin(GetBlockIdx() + 1, GetBlockNum());
  for (int64_t task = pieces.begin(GetBlockIdx(), GetBlockNum()); task < end; ++task) {
    const int64_t row = pieces.row(task), first = pieces.first(task);
    const DataCopyExtParams block{1, pieces.size(task), 0, 0, 0};
    LocalTensor<uint8_t> piece = queue.AllocTensor<uint8_t>();
    DataCopyPad(piece, source[row * pieces.bytes + first], block, DataCopyPadExtParams<uint8_t>{});
    queue.EnQue(piece);
    piece = queue.DeQue<uint8_t>();
    for (int64_t stream = 0; stream < m; ++stream)
      DataCopyPad(target[(row * m + stream) * pieces.bytes + first], piece, block);
    queue.FreeTensor(piece);
  }
}

}  // namespace

int32_t tandem_ascend_hc_expand(const tandem_ascend_device *device, void *stream, const uint16_t *x,
                                uint16_t *trunk, int64_t rows, int64_t m, int64_t bytes,
                                int64_t piece) {
  const Pieces pieces{rows, bytes, piece};
  if (m <= 0) return TANDEM_BAD_VALUE;
  if (int32_t status = check_pieces(device, pieces, Mover::kUnderWay, 0)) return status;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(hc_expand_kernel, piece_blocks(device, pieces), stream, gm_cast<uint8_t>(x),
                       gm_cast<uint8_t>(trunk), m, pieces);
}

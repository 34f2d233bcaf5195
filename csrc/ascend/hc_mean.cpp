// hc_mean: a task is a piece of a row, whose streams lie beside one another in UB.
#include "hc_mean.h"

#include "_move.h"

using namespace AscendC;

namespace {

constexpr int32_t kMostStreams = 4095;  // blocks of a copy

// Means of `count` columns of streams that lie `stride` apart.
__simd_vf__ inline void mean_of_streams(Ub<bfloat16_t> streams, Ub<bfloat16_t> x, uint32_t m,
                                        uint32_t stride, uint32_t count) {
  Reg::RegTensor<float> number;
  Reg::Duplicate(number, float(m));
  const uint16_t registers = rows::rounds(count);
  for (uint16_t i = 0; i < registers; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(count);
    Reg::RegTensor<float> total, wide;
    rows::load(total, streams + i * rows::kStep, mask);
    for (uint32_t stream = 1; stream < m; ++stream) {
      rows::load(wide, streams + (stream * stride + i * rows::kStep), mask);
      Reg::Add(total, total, wide, mask);
    }
    Reg::Div(total, total, number, mask);
    rows::store(x + i * rows::kStep, total, mask);
  }
}

__global__ __vector__ void hc_mean_kernel(Gm<bfloat16_t> trunk, Gm<bfloat16_t> x, int32_t m,
                                          Pieces pieces) {
  rows::keep_infinity_and_nan();
  TPipe pipe;
  TQue<TPosition::VECIN, 1> in;
  TQue<TPosition::VECOUT, 1> out;
  GlobalTensor<bfloat16_t> source, target;
  source.SetGlobalBuffer(trunk);
  target.SetGlobalBuffer(x);
  pipe.InitBuffer(in, 2, uint32_t(pieces.piece) * m);
  pipe.InitBuffer(out, 2, uint32_t(pieces.piece));
  const int64_t width = pieces.bytes / 2;
  const int64_t end = pieces.begin(GetBlockIdx() + 1, GetBlockNum());
  for (int64_t task = pieces.begin(GetBlockIdx(), GetBlockNum()); task < end; ++task) {
    const int64_t row = pieces.row(task), first = pieces.first(task) / 2;
    const uint32_t size = pieces.size(task);
    const uint32_t gap = uint32_t(pieces.piece / 32) - (size + 31) / 32;
    LocalTensor<bfloat16_t> streams = in.AllocTensor<bfloat16_t>();
    DataCopyPad(streams, source[row * m * width + first],
                {uint16_t(m), size, pieces.bytes - size, gap, 0},
                DataCopyPadExtParams<bfloat16_t>{});
    in.EnQue(streams);
    streams = in.DeQue<bfloat16_t>();
    LocalTensor<bfloat16_t> means = out.AllocTensor<bfloat16_t>();
    asc_vf_call<mean_of_streams>(streams.GetPhyAddr(), means.GetPhyAddr(), uint32_t(m),
                                 uint32_t(pieces.piece / 2), size / 2);
    in.FreeTensor(streams);
    out.EnQue(means);
    means = out.DeQue<bfloat16_t>();
    DataCopyPad(target[row * width + first], means, {1, size, 0, 0, 0});
    out.FreeTensor(means);
  }
}

}  // namespace

int32_t tandem_ascend_hc_mean(const tandem_ascend_device *device, void *stream,
                              const uint16_t *trunk, uint16_t *x, int64_t rows, int32_t m,
                              int64_t width, int64_t columns) {
  const Pieces pieces{rows, width * 2, columns * 2};
  if (m <= 0 || m > kMostStreams || columns % ::rows::kStep != 0) return TANDEM_BAD_VALUE;
  if (int32_t status = check_pieces(device, pieces, 2 * (m + 1), 0)) return status;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(hc_mean_kernel, piece_blocks(device, pieces), stream,
                       gm_cast<bfloat16_t>(trunk), gm_cast<bfloat16_t>(x), m, pieces);
}

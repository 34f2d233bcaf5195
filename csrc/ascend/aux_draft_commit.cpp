// aux.draft_commit: weights are copied through UB, in pieces that are dealt to the cores; threads
// of SIMT functions keep tokens and rates.
#include "aux_draft_commit.h"

#include "_grid.h"

namespace {

using AscendC::GetBlockIdx, AscendC::GetBlockNum, AscendC::GlobalTensor, AscendC::LocalTensor,
    AscendC::TPosition;

constexpr int64_t kPiece = 8192;  // weights copied at a time: 32 KB keep the transfers busy
constexpr int64_t kPieceBytes = kPiece * sizeof(int32_t);

__simt_vf__ __launch_bounds__(kThreads) inline void keep_drafts(
    Gm<int32_t> slots, Gm<int32_t> token, Gm<float> confidence, Gm<int32_t> drafts, Gm<float> rates,
    int32_t requests, int32_t block, int32_t column) {
  for (int32_t request = first_item(); request < requests; request += item_step()) {
    const int32_t slot = slots[request];
    if (slot < 0) continue;
    const int64_t place = int64_t(slot) * block + column;
    drafts[place] = token[request];
    float rate = confidence[request];
    if (column > 0) rate = rate * rates[place - 1];
    rates[place] = rate;
  }
}

__aicore__ inline void copy_weights(Gm<int32_t> slots, Gm<int32_t> weight, Gm<int32_t> proposal,
                                    int64_t requests, int64_t width, int32_t block,
                                    int32_t column) {
  AscendC::TPipe pipe;
  AscendC::TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> queue;
  pipe.InitBuffer(queue, 2, kPieceBytes);
  GlobalTensor<int32_t> from, to;
  from.SetGlobalBuffer(weight);
  to.SetGlobalBuffer(proposal);
  const int64_t pieces = (width + kPiece - 1) / kPiece;
  for (int64_t task = GetBlockIdx(); task < requests * pieces; task += GetBlockNum()) {
    const int64_t request = task / pieces, start = task % pieces * kPiece, left = width - start;
    const int32_t slot = slots[request];
    if (slot < 0) continue;
    const AscendC::DataCopyExtParams run{
        1, uint32_t((left < kPiece ? left : kPiece) * sizeof(int32_t)), 0, 0, 0};
    LocalTensor<int32_t> piece = queue.AllocTensor<int32_t>();
    DataCopyPad(piece, from[request * width + start], run,
                AscendC::DataCopyPadExtParams<int32_t>{});
    queue.EnQue(piece);
    piece = queue.DeQue<int32_t>();
    DataCopyPad(to[(int64_t(slot) * block + column) * width + start], piece, run);
    queue.FreeTensor(piece);
  }
}

__global__ __vector__ void draft_commit_kernel(Gm<int32_t> slots, Gm<int32_t> token,
                                               Gm<int32_t> weight, Gm<float> confidence,
                                               Gm<int32_t> drafts, Gm<int32_t> proposal,
                                               Gm<float> rates, int64_t requests, int64_t width,
                                               int32_t block, int32_t column) {
  asc_vf_call<keep_drafts>(dim3(kThreads), slots, token, confidence, drafts, rates,
                           int32_t(requests), block, column);
  copy_weights(slots, weight, proposal, requests, width, block, column);
}

}  // namespace

int32_t tandem_ascend_aux_draft_commit(const tandem_ascend_device *device, void *stream,
                                       const int32_t *slots, const int32_t *token,
                                       const int32_t *weight, const float *confidence,
                                       int32_t *drafts, int32_t *proposal, float *rates,
                                       int64_t requests, int64_t width, int32_t block,
                                       int32_t column) {
  if (width <= 0 || column < 0 || column >= block) return TANDEM_BAD_VALUE;
  if (const int32_t status = check_items(requests); status != TANDEM_OK || requests == 0)
    return status;
  if (2 * kPieceBytes > simt_ub_bytes(device)) return TANDEM_TOO_LARGE;
  const int64_t tasks = requests * ((width + kPiece - 1) / kPiece);
  return TANDEM_LAUNCH_UB(
      draft_commit_kernel, tasks < device->vector_cores ? tasks : device->vector_cores,
      2 * kPieceBytes, stream, gm_cast<int32_t>(slots), gm_cast<int32_t>(token),
      gm_cast<int32_t>(weight), gm_cast<float>(confidence), gm_cast<int32_t>(drafts),
      gm_cast<int32_t>(proposal), gm_cast<float>(rates), requests, width, block, column);
}

// draft_heads: what stands before and after the product of the Markov head.
#include "draft_heads.h"

#include "_block.h"
#include "_elementary.h"
#include "_grid.h"

constexpr float kClip = 60.0f;

// A block takes a row: terms are added up by threads, then over the block as a tree of pairs.
__simt_vf__ __launch_bounds__(kThreads) inline void embed_and_trust(
    Gm<bfloat16_t> hidden, Gm<int32_t> previous, Gm<bfloat16_t> embedding, Gm<float> proj,
    Gm<bfloat16_t> embedded, Gm<float> confidence, int32_t rows, int32_t width, int32_t rank,
    int64_t stride, float temperature, Ub<uint64_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x);
  for (int32_t row = int32_t(blockIdx.x); row < rows; row += int32_t(gridDim.x)) {
    const int32_t token = previous[row];
    Gm<bfloat16_t> from = embedding + int64_t(token) * rank, to = embedded + int64_t(row) * rank;
    if (token < 0) {  // the same for all threads
      for (int32_t k = thread; k < rank; k += kThreads) to[k] = __float2bfloat16_rn(0.0f);
      if (thread == 0) confidence[row] = 0.0f;
      continue;
    }
    Gm<bfloat16_t> x = hidden + row * stride;
    float2 sum = make_float2(0.0f, 0.0f);
    for (int32_t k = thread; k < width; k += kThreads)
      sum = add_pairs(sum, make_float2(__bfloat162float(x[k]) * proj[k], 0.0f));
    for (int32_t k = thread; k < rank; k += kThreads) {
      const bfloat16_t e = from[k];
      to[k] = e;
      sum = add_pairs(sum, make_float2(__bfloat162float(e) * proj[width + k], 0.0f));
    }
    sum = unpack_pair(block_combine<add_packed>(pack_pair(sum), uint64_t(0), scratch));
    if (thread != 0) continue;
    float score = divide(sum.x, temperature);
    score = score > kClip ? kClip : score < -kClip ? -kClip : score;  // keeps NaN
    const float small = exp_negative(score > 0.0f ? -score : score);
    confidence[row] = divide(score > 0.0f ? 1.0f : small, 1.0f + small);
  }
}

__simt_vf__ __launch_bounds__(kThreads) inline void add_base(Gm<float> base, Gm<int32_t> previous,
                                                             Gm<float> logits, int32_t items,
                                                             int32_t vocab, int64_t stride) {
  for (int32_t item = first_item(); item < items; item += item_step()) {
    const int32_t row = item / vocab, token = item % vocab;
    logits[item] = previous[row] < 0 ? __int_as_float(int32_t(0xFF800000))
                                     : float(base[row * stride + token]) + float(logits[item]);
  }
}

__global__ __vector__ void before_kernel(Gm<bfloat16_t> hidden, Gm<int32_t> previous,
                                         Gm<bfloat16_t> embedding, Gm<float> proj,
                                         Gm<bfloat16_t> embedded, Gm<float> confidence,
                                         int32_t rows, int32_t width, int32_t rank, int64_t stride,
                                         float temperature) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> scratch;
  pipe.InitBuffer(scratch, 32 * sizeof(uint64_t));
  asc_vf_call<embed_and_trust>(dim3(kThreads), hidden, previous, embedding, proj, embedded,
                               confidence, rows, width, rank, stride, temperature,
                               scratch.Get<uint64_t>().GetPhyAddr());
}

__global__ __vector__ void after_kernel(Gm<float> base, Gm<int32_t> previous, Gm<float> logits,
                                        int32_t items, int32_t vocab, int64_t stride) {
  asc_vf_call<add_base>(dim3(kThreads), base, previous, logits, items, vocab, stride);
}

int32_t tandem_ascend_draft_heads_before(const tandem_ascend_device *device, void *stream,
                                         const uint16_t *hidden, const int32_t *previous,
                                         const uint16_t *embedding, const float *proj,
                                         uint16_t *embedded, float *confidence, int64_t rows,
                                         int32_t width, int32_t rank, int64_t stride,
                                         float temperature) {
  if (width < 0 || rank < 1 || stride < width) return TANDEM_BAD_VALUE;
  if (const int32_t status = check_items(rows); status != TANDEM_OK || rows == 0) return status;
  return TANDEM_LAUNCH_UB(before_kernel, grid_blocks(device, rows * kThreads), 256, stream,
                          gm_cast<bfloat16_t>(hidden), gm_cast<int32_t>(previous),
                          gm_cast<bfloat16_t>(embedding), gm_cast<float>(proj),
                          gm_cast<bfloat16_t>(embedded), gm_cast<float>(confidence), int32_t(rows),
                          width, rank, stride, temperature);
}

int32_t tandem_ascend_draft_heads_after(const tandem_ascend_device *device, void *stream,
                                        const float *base, const int32_t *previous, float *logits,
                                        int64_t rows, int64_t vocab, int64_t stride) {
  if (vocab < 1 || stride < vocab) return TANDEM_BAD_VALUE;
  const int64_t items = rows * vocab;
  if (const int32_t status = check_items(items); status != TANDEM_OK || items == 0) return status;
  return TANDEM_LAUNCH(after_kernel, grid_blocks(device, items), stream, gm_cast<float>(base),
                       gm_cast<int32_t>(previous), gm_cast<float>(logits), int32_t(items),
                       int32_t(vocab), stride);
}

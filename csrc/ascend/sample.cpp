// sample: a block takes a row: the chunk that holds the target, the thread's part of it, the token.
#include "sample.h"

#include "_distribution.h"

__simt_vf__ __launch_bounds__(kThreads) inline void draw_rows(
    Gm<float> logits, int64_t stride, int32_t vocab, int32_t chunk, int32_t splits, int32_t rows,
    Gm<int64_t> seed, Gm<int64_t> position, Gm<int32_t> places, Gm<float> numbers, Gm<int64_t> kept,
    Gm<int32_t> token_out, Gm<float> raw_out, Gm<float> logprob_out, Ub<int64_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x);
  for (int32_t row = int32_t(blockIdx.x); row < rows; row += int32_t(gridDim.x)) {
    Gm<int32_t> place = places + row * kPlaces;
    Gm<float> number = numbers + row * kNumbers;
    if (!place[kValid]) {  // the same for all threads
      if (thread == 0) {
        token_out[row] = -1;
        raw_out[row] = kNan;
        logprob_out[row] = kNan;
      }
      continue;
    }
    const int64_t sum = thread < splits ? int64_t(kept[int64_t(row) * splits + thread]) : 0;
    const int64_t total = block_sum(sum, scratch);
    const int64_t target = scaled_uniform(uniform53(seed[row], position[row], 0), total);
    find_part(sum, 0, target, scratch);
    const int32_t begin = int32_t(int64_t(scratch[kFound])) * chunk;
    const int64_t line = scratch[kFound + 1];
    asc_syncthreads();
    const float peak = number[kPeak], inverse = number[kInverse];
    const int32_t bound = place[kBound], last = place[kLast], least = place[kLeast];
    Gm<float> row_logits = logits + row * stride;
    const int32_t end = part_end(begin, chunk, vocab);
    int64_t part = 0;
    for (int32_t token = part_begin(begin, chunk); token < end; ++token)
      part += kept_weight(row_logits[token], token, peak, inverse, bound, last, least);
    find_part(part, line, target, scratch);
    if (thread != int32_t(int64_t(scratch[kFound]))) continue;
    int64_t before = scratch[kFound + 1];
    int32_t token = part_begin(begin, chunk);
    while (true) {
      before += kept_weight(row_logits[token], token, peak, inverse, bound, last, least);
      if (before > target) break;
      ++token;
    }
    const float x = row_logits[token];
    token_out[row] = token;
    raw_out[row] = (x - peak) - float(number[kLogAll]);
    logprob_out[row] = scaled_logit(x, peak, inverse) - float(number[kLogKept]);
  }
}

__global__ __vector__ void sample_kernel(Gm<float> logits, int64_t stride, int32_t vocab,
                                         int32_t chunk, int32_t splits, int32_t rows,
                                         Gm<int64_t> seed, Gm<int64_t> position, Gm<int32_t> places,
                                         Gm<float> numbers, Gm<int64_t> kept, Gm<int32_t> token,
                                         Gm<float> raw, Gm<float> logprob) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> scratch;
  pipe.InitBuffer(scratch, kDrawUb);
  asc_vf_call<draw_rows>(dim3(kThreads), logits, stride, vocab, chunk, splits, rows, seed, position,
                         places, numbers, kept, token, raw, logprob,
                         scratch.Get<int64_t>().GetPhyAddr());
}

int32_t tandem_ascend_sample(const tandem_ascend_device *device, void *stream, const float *logits,
                             const int64_t *seed, const int64_t *position, const int32_t *places,
                             const float *numbers, const int64_t *kept, int32_t *token, float *raw,
                             float *logprob, int64_t rows, int64_t vocab, int64_t stride,
                             int64_t chunk) {
  if (const int32_t status = check_chunks(rows, vocab, chunk); status != TANDEM_OK || rows == 0)
    return status;
  return TANDEM_LAUNCH_UB(sample_kernel, grid_blocks(device, rows * kThreads), kDrawUb, stream,
                          gm_cast<float>(logits), stride, int32_t(vocab), int32_t(chunk),
                          int32_t((vocab + chunk - 1) / chunk), int32_t(rows),
                          gm_cast<int64_t>(seed), gm_cast<int64_t>(position),
                          gm_cast<int32_t>(places), gm_cast<float>(numbers), gm_cast<int64_t>(kept),
                          gm_cast<int32_t>(token), gm_cast<float>(raw), gm_cast<float>(logprob));
}

// draft_sample: weights of all tokens and the sums of their masses by chunk, then a block draws a
// row.
#include "draft_sample.h"

#include "_distribution.h"

// Weights of a chunk of a row, and the sum of their masses.
__simt_vf__ __launch_bounds__(kThreads) inline void weigh_chunks(
    Gm<float> logits, int64_t stride, int32_t vocab, int32_t chunk, int32_t splits, int32_t rows,
    Gm<int32_t> places, Gm<float> numbers, Gm<int64_t> kept, Gm<int64_t> masses,
    Gm<int32_t> weights, Ub<int64_t> scratch) {
  for (int32_t item = int32_t(blockIdx.x); item < rows * splits; item += int32_t(gridDim.x)) {
    const int32_t row = item / splits, part = item % splits, end = min(part * chunk + chunk, vocab);
    Gm<int32_t> place = places + row * kPlaces, to = weights + int64_t(row) * vocab;
    const int32_t first = part * chunk + int32_t(threadIdx.x);
    if (!place[kValid]) {  // the same for all threads
      for (int32_t token = first; token < end; token += kThreads) to[token] = 0;
      continue;
    }
    const float peak = numbers[row * kNumbers + kPeak];
    const float inverse = numbers[row * kNumbers + kInverse];
    const int32_t bound = place[kBound], last = place[kLast], least = place[kLeast];
    const int64_t total = row_weight(kept, row, splits, scratch);
    const uint64_t by_total = reciprocal(total);
    Gm<float> from = logits + row * stride;
    int64_t sum = 0;
    for (int32_t token = first; token < end; token += kThreads) {
      const int32_t weight = kept_weight(from[token], token, peak, inverse, bound, last, least);
      to[token] = weight;
      sum += mass(weight, total, by_total);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) masses[item] = sum;
  }
}

// The token of a row; what is missing of its masses to 2^42 belongs to the lowest id of the largest
// weight.
__simt_vf__ __launch_bounds__(kThreads) inline void propose_rows(
    int32_t vocab, int32_t chunk, int32_t splits, int32_t rows, Gm<int64_t> seed,
    Gm<int64_t> position, Gm<int32_t> places, Gm<int64_t> kept, Gm<int64_t> masses,
    Gm<int32_t> weights, Gm<int32_t> token_out, int32_t coupled, Ub<int64_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x);
  for (int32_t row = int32_t(blockIdx.x); row < rows; row += int32_t(gridDim.x)) {
    Gm<int32_t> place = places + row * kPlaces;
    if (!place[kValid]) {  // the same for all threads
      if (thread == 0) token_out[row] = -1;
      continue;
    }
    const int32_t favourite = place[kFavourite];
    const int64_t total = row_weight(kept, row, splits, scratch);
    int64_t sum = thread < splits ? int64_t(masses[int64_t(row) * splits + thread]) : 0;
    const int64_t missing = kWhole - block_sum(sum, scratch);
    if (thread == favourite / chunk) sum += missing;
    const int64_t stream = int64_t(seed[row]) + (coupled ? 0 : kDraftStream);
    const int64_t target = int64_t(uniform53(stream, position[row], 0) >> 11);
    find_part(sum, 0, target, scratch);
    const int32_t begin = int32_t(int64_t(scratch[kFound])) * chunk;
    const int64_t line = scratch[kFound + 1];
    asc_syncthreads();
    Gm<int32_t> weight = weights + int64_t(row) * vocab;
    const uint64_t by_total = reciprocal(total);
    const int32_t end = part_end(begin, chunk, vocab);
    int64_t part = 0;
    for (int32_t token = part_begin(begin, chunk); token < end; ++token)
      part += mass(weight[token], total, by_total) + (token == favourite ? missing : 0);
    find_part(part, line, target, scratch);
    if (thread != int32_t(int64_t(scratch[kFound]))) continue;
    int64_t before = scratch[kFound + 1];
    int32_t token = part_begin(begin, chunk);
    while (true) {
      before += mass(weight[token], total, by_total) + (token == favourite ? missing : 0);
      if (before > target) break;
      ++token;
    }
    token_out[row] = token;
  }
}

__global__ __vector__ void weigh_kernel(Gm<float> logits, int64_t stride, int32_t vocab,
                                        int32_t chunk, int32_t splits, int32_t rows,
                                        Gm<int32_t> places, Gm<float> numbers, Gm<int64_t> kept,
                                        Gm<int64_t> masses, Gm<int32_t> weights) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> scratch;
  pipe.InitBuffer(scratch, kDrawUb);
  asc_vf_call<weigh_chunks>(dim3(kThreads), logits, stride, vocab, chunk, splits, rows, places,
                            numbers, kept, masses, weights, scratch.Get<int64_t>().GetPhyAddr());
}

__global__ __vector__ void propose_kernel(int32_t vocab, int32_t chunk, int32_t splits,
                                          int32_t rows, Gm<int64_t> seed, Gm<int64_t> position,
                                          Gm<int32_t> places, Gm<int64_t> kept, Gm<int64_t> masses,
                                          Gm<int32_t> weights, Gm<int32_t> token, int32_t coupled) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> scratch;
  pipe.InitBuffer(scratch, kDrawUb);
  asc_vf_call<propose_rows>(dim3(kThreads), vocab, chunk, splits, rows, seed, position, places,
                            kept, masses, weights, token, coupled,
                            scratch.Get<int64_t>().GetPhyAddr());
}

int32_t tandem_ascend_draft_sample(const tandem_ascend_device *device, void *stream,
                                   const float *logits, const int64_t *seed,
                                   const int64_t *position, const int32_t *places,
                                   const float *numbers, const int64_t *kept, int64_t *masses,
                                   int32_t *token, int32_t *weight, int64_t rows, int64_t vocab,
                                   int64_t stride, int64_t chunk, int32_t coupled) {
  if (const int32_t status = check_chunks(rows, vocab, chunk); status != TANDEM_OK || rows == 0)
    return status;
  if (vocab > 1 << 23) return TANDEM_TOO_LARGE;
  const int32_t v = int32_t(vocab), c = int32_t(chunk), n = int32_t(rows);
  const int32_t splits = int32_t((vocab + chunk - 1) / chunk);
  const Gm<int32_t> place = gm_cast<int32_t>(places), weights = gm_cast<int32_t>(weight);
  const Gm<int64_t> left = gm_cast<int64_t>(kept), sums = gm_cast<int64_t>(masses);
  const int32_t status =
      TANDEM_LAUNCH_UB(weigh_kernel, grid_blocks(device, rows * splits * kThreads), kDrawUb, stream,
                       gm_cast<float>(logits), stride, v, c, splits, n, place,
                       gm_cast<float>(numbers), left, sums, weights);
  if (status != TANDEM_OK) return status;
  return TANDEM_LAUNCH_UB(propose_kernel, grid_blocks(device, rows * kThreads), kDrawUb, stream, v,
                          c, splits, n, gm_cast<int64_t>(seed), gm_cast<int64_t>(position), place,
                          left, sums, weights, gm_cast<int32_t>(token), coupled);
}

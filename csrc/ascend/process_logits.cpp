// process_logits: one pass over the logits, a chunk of a row to a block at a time.
#include "process_logits.h"

#include "_distribution.h"

__simt_vf__ __launch_bounds__(kThreads) inline void process_chunks(
    Gm<float> logits, int64_t stride, int32_t vocab, int32_t chunk, int32_t splits, int32_t rows,
    Gm<int32_t> places, Gm<float> numbers, Gm<float> out) {
  for (int32_t item = int32_t(blockIdx.x); item < rows * splits; item += int32_t(gridDim.x)) {
    const int32_t row = item / splits, part = item % splits, end = min(part * chunk + chunk, vocab);
    Gm<int32_t> place = places + row * kPlaces;
    Gm<float> number = numbers + row * kNumbers;
    Gm<float> from = logits + row * stride, to = out + int64_t(row) * vocab;
    const bool valid = place[kValid] != 0;
    const float peak = valid ? float(number[kPeak]) : 0.0f;
    const float inverse = valid ? float(number[kInverse]) : 0.0f;
    const float log = valid ? float(number[kLogKept]) : 0.0f;
    const int32_t bound = place[kBound], last = place[kLast];
    const int32_t least = valid ? int32_t(place[kLeast]) : 0;
    for (int32_t token = part * chunk + int32_t(threadIdx.x); token < end; token += kThreads) {
      if (!valid) {
        to[token] = kNan;
        continue;
      }
      const float x = from[token], scaled = scaled_logit(x, peak, inverse);
      const int32_t weight = integer_weight(exp_negative(scaled));
      const bool kept = is_kept(image(x), token, weight, bound, last, least);
      to[token] = kept ? scaled - log : -kInfinity;
    }
  }
}

__global__ __vector__ void process_kernel(Gm<float> logits, int64_t stride, int32_t vocab,
                                          int32_t chunk, int32_t splits, int32_t rows,
                                          Gm<int32_t> places, Gm<float> numbers, Gm<float> out) {
  asc_vf_call<process_chunks>(dim3(kThreads), logits, stride, vocab, chunk, splits, rows, places,
                              numbers, out);
}

int32_t tandem_ascend_process_logits(const tandem_ascend_device *device, void *stream,
                                     const float *logits, const int32_t *places,
                                     const float *numbers, float *out, int64_t rows, int64_t vocab,
                                     int64_t stride, int64_t chunk) {
  if (const int32_t status = check_chunks(rows, vocab, chunk); status != TANDEM_OK || rows == 0)
    return status;
  const int64_t splits = (vocab + chunk - 1) / chunk;
  return TANDEM_LAUNCH(process_kernel, grid_blocks(device, rows * splits * kThreads), stream,
                       gm_cast<float>(logits), stride, int32_t(vocab), int32_t(chunk),
                       int32_t(splits), int32_t(rows), gm_cast<int32_t>(places),
                       gm_cast<float>(numbers), gm_cast<float>(out));
}

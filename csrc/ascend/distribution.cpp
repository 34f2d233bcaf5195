// The distribution of rows of logits, measured in chunks of fixed width.
//
// A block takes a chunk of a row at a time: its maximum; where filters are on the search for their
// cut
// (_filters.h); then sums over what is left; and at last a block takes a row and puts its chunks
// together. A chunk's width depends on the vocabulary alone, and all sums of floats are trees of
// fixed shape: a row's bits do not depend on how many rows or cores there are.
#include "distribution.h"

#include "_measure.h"

constexpr uint32_t kBinUb = 5 * kBins * sizeof(int32_t);

__simt_vf__ __launch_bounds__(kThreads) inline void find_peaks(
    Gm<float> logits, int64_t stride, int32_t vocab, int32_t chunk, int32_t splits, int32_t rows,
    Gm<uint64_t> peaks, Gm<int64_t> weights, Gm<int32_t> counts, int32_t filtered,
    Ub<int64_t> scratch) {
  for (int32_t item = int32_t(blockIdx.x); item < rows * splits; item += int32_t(gridDim.x)) {
    const int32_t row = item / splits, part = item % splits;
    const int32_t end = min(part * chunk + chunk, vocab);
    Gm<float> line = logits + row * stride;
    float high = -kInfinity;
    int32_t at = kNowhere;
    bool spoilt = false;
    for (int32_t token = part * chunk + int32_t(threadIdx.x); token < end; token += kThreads) {
      const float x = line[token];
      spoilt = spoilt || x != x;
      if (x > high || (x == high && at == kNowhere)) {
        high = x;
        at = token;
      }
    }
    const uint64_t mine = spoilt ? kSpoilt : at == kNowhere ? 0 : peak_key(high, at);
    const uint64_t best = block_max(mine, uint64_t(0), Ub<uint64_t>(scratch));
    if (threadIdx.x == 0) peaks[item] = best;
    if (filtered && part == 0) clear_bins(weights, counts, 0, row, rows);
  }
}

// One pass of the search over one chunk of one row at a time.
__simt_vf__ __launch_bounds__(kThreads) inline void search(
    Gm<float> logits, int64_t stride, int32_t vocab, int32_t chunk, int32_t splits, int32_t rows,
    Gm<float> temperature, Gm<float> top_p, Gm<int32_t> top_k, Gm<float> min_p, Gm<uint64_t> peaks,
    Gm<int64_t> state, Gm<int64_t> weights, Gm<int32_t> counts, int32_t pass, Ub<int64_t> scratch,
    Ub<uint32_t> bins) {
  const int32_t thread = int32_t(threadIdx.x);
  Ub<int64_t> now = scratch + kState;
  Ub<int32_t> smallest = Ub<int32_t>(bins + 3 * kBins), largest = smallest + kBins;
  for (int32_t item = int32_t(blockIdx.x); item < rows * splits; item += int32_t(gridDim.x)) {
    const int32_t row = item / splits, part = item % splits, end = min(part * chunk + chunk, vocab);
    const uint64_t best = row_peak(peaks, row, splits, scratch);
    const float heat = temperature[row];
    if (pass == 0) {
      if (thread == 0) {
        now[kLo] = kUnbounded;
        now[kHi] = peak_image(best);
        now[kAbove] = 0;
        now[kBefore] = 0;
        now[kLimit] = 0;
        now[kKeep] = is_valid(best) && heat >= kGreedyBelow ? -1 : 1;
      }
      asc_syncthreads();
    } else {
      read_state(state, weights, counts, pass, row, rows, of_32_bits(top_p[row]), top_k[row],
                 scratch);
    }
    if (part == 0) {
      if (thread < kFields)
        state[(int64_t((pass + 1) % 2) * rows + row) * kFields + thread] = now[thread];
      clear_bins(weights, counts, (pass + 1) % 3, row, rows);
    }
    const int64_t lo = now[kLo], hi = now[kHi];
    const bool open = now[kKeep] < 0;
    for (int32_t kind = 0; kind < 3; ++kind) bins[kind * kBins + thread] = 0;
    smallest[thread] = 0x7FFFFFFF;
    largest[thread] = int32_t(0x80000000);
    asc_syncthreads();
    if (!open) continue;  // the same for all threads
    const float peak = preimage(peak_image(best)), inverse = inverse_temperature(heat);
    const int32_t least = min_p == nullptr ? 0 : least_weight(min_p[row]);
    const int32_t shift = bin_shift(lo, hi);
    Gm<float> line = logits + row * stride;
    for (int32_t token = part * chunk + thread; token < end; token += kThreads) {
      const float x = line[token];
      const int32_t key = image(x);
      if (key <= lo || key > hi) continue;
      const float scaled = scaled_logit(x, peak, inverse);
      const int32_t weight = integer_weight(exp_negative(scaled));
      const uint32_t counted = weight >= least ? uint32_t(weight) : 0;
      const int32_t bin = pass == 0 ? int32_t(fminf(-scaled * kBinsOfNat, float(kBins - 1)))
                                    : int32_t((hi - key) >> shift);
      // A chunk has at most 2^16 tokens, so sums of 15 bits of their weights, and of 16, fit.
      asc_atomic_add(bins + bin, counted & 0x7FFFu);
      asc_atomic_add(bins + kBins + bin, counted >> 15);
      asc_atomic_add(bins + 2 * kBins + bin, 1u);
      asc_atomic_min(smallest + bin, key);
      asc_atomic_max(largest + bin, key);
    }
    asc_syncthreads();
    const uint32_t number = bins[2 * kBins + thread];
    if (number == 0) continue;
    const int32_t set = pass % 3;
    const uint32_t high = bins[kBins + thread], low = bins[thread];
    asc_atomic_add(weights + weight_bins(set, row, rows) + thread,
                   int64_t(uint64_t(high) << 15) + int64_t(low));
    asc_atomic_add(counts + count_bins(set, 0, row, rows) + thread, int32_t(number));
    asc_atomic_min(counts + count_bins(set, 1, row, rows) + thread, int32_t(smallest[thread]));
    asc_atomic_max(counts + count_bins(set, 2, row, rows) + thread, int32_t(largest[thread]));
  }
}

__global__ __vector__ void peaks_kernel(Gm<float> logits, int64_t stride, int32_t vocab,
                                        int32_t chunk, int32_t splits, int32_t rows,
                                        Gm<uint64_t> peaks, Gm<int64_t> weights, Gm<int32_t> counts,
                                        int32_t filtered) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> scratch;
  pipe.InitBuffer(scratch, kDrawUb);
  asc_vf_call<find_peaks>(dim3(kThreads), logits, stride, vocab, chunk, splits, rows, peaks,
                          weights, counts, filtered, scratch.Get<int64_t>().GetPhyAddr());
}

__global__ __vector__ void search_kernel(Gm<float> logits, int64_t stride, int32_t vocab,
                                         int32_t chunk, int32_t splits, int32_t rows,
                                         Gm<float> temperature, Gm<float> top_p, Gm<int32_t> top_k,
                                         Gm<float> min_p, Gm<uint64_t> peaks, Gm<int64_t> state,
                                         Gm<int64_t> weights, Gm<int32_t> counts, int32_t pass) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> scratch;
  pipe.InitBuffer(scratch, kDrawUb);
  AscendC::TBuf<AscendC::TPosition::VECCALC> bins;
  pipe.InitBuffer(bins, kBinUb);
  asc_vf_call<search>(dim3(kThreads), logits, stride, vocab, chunk, splits, rows, temperature,
                      top_p, top_k, min_p, peaks, state, weights, counts, pass,
                      scratch.Get<int64_t>().GetPhyAddr(), bins.Get<uint32_t>().GetPhyAddr());
}

__global__ __vector__ void measure_kernel(Gm<float> logits, int64_t stride, int32_t vocab,
                                          int32_t chunk, int32_t splits, int32_t rows,
                                          Gm<float> temperature, Gm<float> top_p, Gm<int32_t> top_k,
                                          Gm<float> min_p, Gm<uint64_t> peaks, Gm<int64_t> state,
                                          Gm<int64_t> weights, Gm<int32_t> counts,
                                          Gm<int32_t> parts, Gm<uint64_t> sums, Gm<int32_t> places,
                                          Gm<int64_t> kept, int32_t filtered, int32_t with_all) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> scratch;
  pipe.InitBuffer(scratch, kDrawUb);
  asc_vf_call<measure>(dim3(kThreads), logits, stride, vocab, chunk, splits, rows, temperature,
                       top_p, top_k, min_p, peaks, state, weights, counts, parts, sums, places,
                       kept, filtered, with_all, scratch.Get<int64_t>().GetPhyAddr());
}

__global__ __vector__ void finish_kernel(Gm<float> logits, int64_t stride, int32_t vocab,
                                         int32_t chunk, int32_t splits, int32_t rows,
                                         Gm<float> temperature, Gm<float> min_p, Gm<uint64_t> peaks,
                                         Gm<int32_t> parts, Gm<uint64_t> sums, Gm<int32_t> places,
                                         Gm<float> numbers, Gm<int64_t> kept, int32_t with_all) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> scratch;
  pipe.InitBuffer(scratch, kDrawUb);
  asc_vf_call<finish>(dim3(kThreads), logits, stride, vocab, chunk, splits, rows, temperature,
                      min_p, peaks, parts, sums, places, numbers, kept, with_all,
                      scratch.Get<int64_t>().GetPhyAddr());
}

int32_t tandem_ascend_distribution(const tandem_ascend_device *device, void *stream,
                                   const float *logits, const float *temperature,
                                   const float *top_p, const int32_t *top_k, const float *min_p,
                                   uint64_t *peaks, int64_t *state, int64_t *weights,
                                   int32_t *counts, int32_t *parts, uint64_t *sums, int32_t *places,
                                   float *numbers, int64_t *kept, int64_t rows, int64_t vocab,
                                   int64_t stride, int64_t chunk, int32_t filtered,
                                   int32_t with_all) {
  if (const int32_t status = check_chunks(rows, vocab, chunk); status != TANDEM_OK || rows == 0)
    return status;
  const int64_t splits = (vocab + chunk - 1) / chunk;
  const int64_t blocks = grid_blocks(device, rows * splits * kThreads);
  const int64_t row_blocks = grid_blocks(device, rows * kThreads);
  constexpr uint32_t kUb = kDrawUb + kBinUb;
  const Gm<float> line = gm_cast<float>(logits), heat = gm_cast<float>(temperature),
                  p = gm_cast<float>(top_p), least = gm_cast<float>(min_p),
                  found = gm_cast<float>(numbers);
  const Gm<int32_t> k = gm_cast<int32_t>(top_k), count = gm_cast<int32_t>(counts),
                    part = gm_cast<int32_t>(parts), place = gm_cast<int32_t>(places);
  const Gm<uint64_t> peak = gm_cast<uint64_t>(peaks), sum = gm_cast<uint64_t>(sums);
  const Gm<int64_t> states = gm_cast<int64_t>(state), weight = gm_cast<int64_t>(weights),
                    left = gm_cast<int64_t>(kept);
  const int32_t v = int32_t(vocab), c = int32_t(chunk), s = int32_t(splits), n = int32_t(rows);
  int32_t status = TANDEM_LAUNCH_UB(peaks_kernel, blocks, kUb, stream, line, stride, v, c, s, n,
                                    peak, weight, count, filtered);
  for (int32_t pass = 0; filtered && pass < kSearchPasses && status == TANDEM_OK; ++pass)
    status = TANDEM_LAUNCH_UB(search_kernel, blocks, kUb, stream, line, stride, v, c, s, n, heat, p,
                              k, least, peak, states, weight, count, pass);
  if (status == TANDEM_OK)
    status = TANDEM_LAUNCH_UB(measure_kernel, blocks, kUb, stream, line, stride, v, c, s, n, heat,
                              p, k, least, peak, states, weight, count, part, sum, place, left,
                              filtered, with_all);
  if (status == TANDEM_OK)
    status = TANDEM_LAUNCH_UB(finish_kernel, row_blocks, kUb, stream, line, stride, v, c, s, n,
                              heat, least, peak, part, sum, place, found, left, with_all);
  return status;
}

// Where min-p, top-p and top-k cut a row of logits, found without a sort.
//
// The filters keep a prefix of the order (logit descending, id ascending): the keys above a bound
// and, of the tokens at the bound itself, the first few by id. A pass sorts the tokens of a bracket
// of keys into 256 bins, largest keys first, and sums weight and number of each bin; the next pass
// goes on with the bin in which the filters begin to remove. The first pass bins by value, a
// twelfth of a nat each, where most rows have their bound; four more, by the bits of keys, close
// any bracket, which also shrinks to the smallest and largest key that occur. Sums are integers, so
// their order is free. Blocks of a row whose bracket is closed end at once.
#pragma once

#include "_distribution.h"

constexpr int32_t kBins = 256;  // one a thread
constexpr int32_t kSearchPasses = 5;
constexpr float kBinsOfNat = 12.0f;  // 21 nats below the maximum a weight is 0

// A row's state: keys above `lo` and up to `hi` are in the bracket.
constexpr int32_t kFields = 6;
enum Field : int32_t {
  kLo,
  kHi,
  kAbove,   // weight of the tokens above hi
  kBefore,  // number of them
  kLimit,   // weight before a token up to which it is kept
  kKeep,    // tokens kept at hi, -1 while the bracket is open
};

// Scratch of a row in UB: the state, for all threads.
constexpr int32_t kState = 32;  // place in scratch, behind the sums of warps
static_assert(kState + kFields <= kFound);

// Offsets of a row's bins, of one of three sets: weights, and numbers, smallest and largest keys.
__simt_callee__ inline int64_t weight_bins(int32_t set, int32_t row, int32_t rows) {
  return (int64_t(set) * rows + row) * kBins;
}
__simt_callee__ inline int64_t count_bins(int32_t set, int32_t kind, int32_t row, int32_t rows) {
  return ((int64_t(set) * 3 + kind) * rows + row) * kBins;
}

// Make the bins of a row empty; a thread takes one.
__simt_callee__ inline void clear_bins(Gm<int64_t> weights, Gm<int32_t> counts, int32_t set,
                                       int32_t row, int32_t rows) {
  const int32_t bin = int32_t(threadIdx.x);
  weights[weight_bins(set, row, rows) + bin] = 0;
  counts[count_bins(set, 0, row, rows) + bin] = 0;
  counts[count_bins(set, 1, row, rows) + bin] = 0x7FFFFFFF;
  counts[count_bins(set, 2, row, rows) + bin] = int32_t(0x80000000);
}

// What remains of a bin with the first removed token, once it is known: the bracket, or how many
// are kept. All of the bin may be.
__simt_callee__ inline void narrow_to(Ub<int64_t> state, int64_t weight, int64_t number,
                                      int64_t smallest, int64_t largest, int64_t above,
                                      int64_t before, int64_t limit, int64_t most) {
  int64_t keep = -1, hi = largest;
  if (above + weight <= limit && before + number <= most) {
    keep = 0;
    hi = smallest - 1;
  } else if (smallest == largest) {
    const int64_t each = weight / number;
    const int64_t room = each > 0 ? (limit - above) / each + 1 : number;
    keep = llmin(llmin(room, number), most - before);
  }
  state[kLo] = smallest - 1;
  state[kHi] = hi;
  state[kAbove] = above;
  state[kBefore] = before;
  state[kLimit] = limit;
  state[kKeep] = keep;
}

// The state of a row after the passes before `pass`, in scratch + kState. Called by all threads.
__simt_callee__ inline void read_state(Gm<int64_t> state, Gm<int64_t> weights, Gm<int32_t> counts,
                                       int32_t pass, int32_t row, int32_t rows, int64_t share,
                                       int32_t top_k, Ub<int64_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x), set = (pass + 2) % 3;
  Gm<int64_t> stored = state + (int64_t(pass % 2) * rows + row) * kFields;
  Ub<int64_t> now = scratch + kState;
  if (thread < kFields) now[thread] = int64_t(stored[thread]);
  asc_syncthreads();
  if (now[kKeep] < 0) {  // the same for all threads
    const int64_t weight = weights[weight_bins(set, row, rows) + thread];
    const int32_t number = counts[count_bins(set, 0, row, rows) + thread];
    const int64_t above = now[kAbove] + block_sum_before(weight, scratch);
    const int64_t before = now[kBefore] + block_sum_before(int64_t(number), scratch);
    const int64_t total = block_sum(weight, scratch);
    const int64_t limit = pass == 1 ? part_of(share, total) : int64_t(now[kLimit]);
    const int64_t most = top_k < 1 ? 0x7FFFFFFFFFFFFFFF : int64_t(top_k);
    const bool kept = number > 0 && above <= limit && before < most;
    const int32_t last = block_max(kept ? thread : -1, -1, Ub<int32_t>(scratch));
    if (thread == last)
      narrow_to(now, weight, number, int32_t(counts[count_bins(set, 1, row, rows) + thread]),
                int32_t(counts[count_bins(set, 2, row, rows) + thread]), above, before, limit,
                most);
    asc_syncthreads();
  }
}

// By how many bits the distance from hi is shifted to give one of the bins.
__simt_callee__ inline int32_t bin_shift(int64_t lo, int64_t hi) {
  int32_t shift = 0;
  while (((hi - lo - 1) >> shift) >= kBins) ++shift;
  return shift;
}

// What the ops that draw read of the rows that `tandem_ascend_distribution` has measured, and how a
// block finds the place of a number on a line of weights.
#pragma once

#include "_block.h"
#include "_grid.h"
#include "_sampling.h"

// Bytes of UB that the kernels here need; scratch is the first part of it, as int64.
constexpr uint32_t kDrawUb = 1024;
constexpr int32_t kFound = 48;  // where in scratch a thread leaves what it found for the others

// What the entries demand of the shape: `chunk` a power of two from 256 to 65536, at most 256 of
// them.
inline int32_t check_chunks(int64_t rows, int64_t vocab, int64_t chunk) {
  if (vocab < 1 || chunk < kThreads || (chunk & (chunk - 1)) != 0) return TANDEM_BAD_VALUE;
  const int64_t splits = (vocab + chunk - 1) / chunk;
  if (vocab > 1 << 24 || chunk > 65536 || splits > kThreads) return TANDEM_TOO_LARGE;
  return check_items(rows * splits);
}

// Of a row: kPlaces integers and kNumbers floats.
constexpr int32_t kPlaces = 6;
constexpr int32_t kNumbers = 4;
enum Place : int32_t {
  kValid,      // whether the row has a finite maximum and no NaN; if not, nothing else is set
  kFirst,      // lowest id of the maximum
  kBound,      // image above which tokens are kept
  kLast,       // last id kept at the bound, -1 for none
  kLeast,      // smallest weight that min-p leaves
  kFavourite,  // lowest id of weight 2^30 that is kept
};
enum Number : int32_t {
  kPeak,     // maximum
  kInverse,  // 1 / temperature
  kLogKept,  // log of the sum of exponentials of what is kept
  kLogAll,   // the same of all raw logits
};

// The weight of a token, 0 where the filters remove it.
__simt_callee__ inline int32_t kept_weight(float x, int32_t token, float peak, float inverse,
                                           int32_t bound, int32_t last, int32_t least) {
  const int32_t weight = integer_weight(exp_negative(scaled_logit(x, peak, inverse)));
  return is_kept(image(x), token, weight, bound, last, least) ? weight : 0;
}

// The sum of a row's kept weights.
__simt_callee__ inline int64_t row_weight(Gm<int64_t> kept, int32_t row, int32_t splits,
                                          Ub<int64_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x);
  return block_sum(thread < splits ? int64_t(kept[int64_t(row) * splits + thread]) : int64_t(0),
                   scratch);
}

// Where a target falls on a line of the threads' parts, in their order from `start` on. The thread
// whose part holds it leaves its number and the sum before it in scratch[kFound] and [kFound + 1],
// for all to read. One part holds it.
__simt_callee__ inline void find_part(int64_t part, int64_t start, int64_t target,
                                      Ub<int64_t> scratch) {
  const int64_t before = start + block_sum_before(part, scratch);
  if (before <= target && target < before + part) {
    scratch[kFound] = int64_t(threadIdx.x);
    scratch[kFound + 1] = before;
  }
  asc_syncthreads();
}

// A chunk as consecutive parts of threads.
__simt_callee__ inline int32_t part_begin(int32_t chunk_begin, int32_t chunk) {
  return chunk_begin + int32_t(threadIdx.x) * (chunk / int32_t(kThreads));
}
__simt_callee__ inline int32_t part_end(int32_t chunk_begin, int32_t chunk, int32_t vocab) {
  return min(part_begin(chunk_begin, chunk) + chunk / int32_t(kThreads), vocab);
}

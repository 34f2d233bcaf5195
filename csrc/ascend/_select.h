// Selection by (score descending, index ascending), by counts of integers alone.
//
// A block finds the key of the k-th best by its bits, eight at a time from the top, with a
// histogram in UB; then every thread knows of its own scores whether they are chosen, and ties at
// that key go to the lowest indices. How a row is cut, and how many threads do it, changes no bit.
#pragma once

#include "_block.h"

constexpr int32_t kSelectBins = 256;
constexpr int32_t kSelectScratch = kSelectBins + 2;  // int32 elements of UB that `kth_key` needs

// Keys in the order of the scores; both zeros alike, 0 for NaN and -inf, which are never chosen.
__simt_callee__ inline uint32_t order_key(float score) {
  if (!(score > __int_as_float(int32_t(0xFF800000)))) return 0;
  const uint32_t bits = score == 0.0f ? 0u : __float_as_uint(score);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// Of the keys key_of(source, i), i from 0 to count - 1, the k-th largest, k > 0: x is that key as
// its bits, y how many of those equal to it are chosen, the first by index, beside all that are
// larger. Where at most k keys are above 0, both are 0, and all of these are chosen. All threads of
// the block call it; what key_of reads is written by none of them meanwhile.
template <auto key_of, class Source>
__simt_callee__ inline int2 kth_key(Source source, int32_t count, int32_t k, Ub<int32_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x), threads = int32_t(blockDim.x);
  Ub<int32_t> bins = scratch, found = scratch + kSelectBins;
  uint32_t prefix = 0;
  int32_t wanted = k;
  for (int32_t shift = 24; shift >= 0; shift -= 8) {
    for (int32_t bin = thread; bin < kSelectBins; bin += threads) bins[bin] = 0;
    asc_syncthreads();
    for (int32_t i = thread; i < count; i += threads) {
      const uint32_t key = key_of(source, i);
      const bool inside = shift == 24 || (key >> (shift + 8)) == (prefix >> (shift + 8));
      if (key != 0 && inside) asc_atomic_add(bins + int32_t((key >> shift) & 255u), 1);
    }
    asc_syncthreads();
    if (thread == 0) {  // the bin that the wanted one lies in, from the top
      int32_t bin = kSelectBins - 1;
      while (bin >= 0 && bins[bin] < wanted) wanted -= bins[bin--];
      found[0] = bin;
      found[1] = wanted;
    }
    asc_syncthreads();
    const int32_t bin = found[0];
    wanted = found[1];
    asc_syncthreads();
    if (bin < 0) return make_int2(0, 0);
    prefix |= uint32_t(bin) << shift;
  }
  return make_int2(int32_t(prefix), wanted);
}

// Sums, extremes and running sums over the threads of a block of SIMT threads.
//
// All threads of the block call these together. `scratch` is UB of at least 32 elements of the
// type; it may be used for the next call at once. The order of all steps is fixed, so sums of
// floats have the same bits every time.
#pragma once

#include "kernel.h"

// The steps of a combination, as template arguments.
template <class T>
__simt_callee__ inline T sum_of(T a, T b) {
  return a + b;
}
template <class T>
__simt_callee__ inline T larger_of(T a, T b) {
  return a > b ? a : b;
}
template <class T>
__simt_callee__ inline T smaller_of(T a, T b) {
  return a < b ? a : b;
}

// Combine the values of a warp by a tree; all lanes get the result.
template <auto combine, class T>
__simt_callee__ inline T warp_combine(T value) {
  for (int32_t step = 1; step < 32; step *= 2) value = combine(value, asc_shfl_xor(value, step));
  return value;
}

// Combine the values of a block: those of its warps, then of all warps, as trees. `neutral` changes
// nothing.
template <auto combine, class T>
__simt_callee__ inline T block_combine(T value, T neutral, Ub<T> scratch) {
  const int32_t lane = laneid();
  value = warp_combine<combine>(value);
  if (lane == 0) scratch[threadIdx.x / 32] = value;
  asc_syncthreads();
  value = lane < int32_t(blockDim.x / 32) ? T(scratch[lane]) : neutral;
  value = warp_combine<combine>(value);
  asc_syncthreads();
  return value;
}

template <class T>
__simt_callee__ inline T block_sum(T value, Ub<T> scratch) {
  return block_combine<sum_of<T>>(value, T(0), scratch);
}

template <class T>
__simt_callee__ inline T block_max(T value, T lowest, Ub<T> scratch) {
  return block_combine<larger_of<T>>(value, lowest, scratch);
}

template <class T>
__simt_callee__ inline T block_min(T value, T largest, Ub<T> scratch) {
  return block_combine<smaller_of<T>>(value, largest, scratch);
}

// The sum of the values of this lane and those before it.
template <class T>
__simt_callee__ inline T warp_sum_until(T value) {
  for (int32_t step = 1; step < 32; step *= 2) {
    const T other = asc_shfl_up(value, uint32_t(step));
    if (laneid() >= step) value += other;
  }
  return value;
}

// The sum of the values of all threads before this one.
template <class T>
__simt_callee__ inline T block_sum_before(T value, Ub<T> scratch) {
  const int32_t lane = laneid(), warp = int32_t(threadIdx.x / 32);
  const T until = warp_sum_until(value);
  if (lane == 31) scratch[warp] = until;
  asc_syncthreads();
  const T totals = warp_sum_until(lane < int32_t(blockDim.x / 32) ? T(scratch[lane]) : T(0));
  const T before = asc_shfl(totals, warp == 0 ? 0 : warp - 1);
  asc_syncthreads();
  return (warp == 0 ? T(0) : before) + until - value;
}

// SIMT functions whose values test_simt.py computes on its own.
#include <cstring>

#include "kernel.h"

namespace {

using namespace AscendC;

constexpr uint32_t kThreads = 96;  // three warps

// What each lane gets from shuffles and votes, 16 numbers a thread.
__simt_vf__ __launch_bounds__(kThreads) inline void warp(Gm<int32_t> in, Gm<int32_t> out) {
  const uint32_t i = threadIdx.x;
  const int32_t x = in[i];
  int32_t results[16] = {};
  results[0] = asc_shfl(x, 5);
  results[1] = asc_shfl(x, 3, 8);
  results[2] = asc_shfl_up(x, 3);
  results[3] = asc_shfl_up(x, 2, 4);
  results[4] = asc_shfl_down(x, 7);
  results[5] = asc_shfl_down(x, 1, 2);
  results[6] = asc_shfl_xor(x, 9);
  results[7] = asc_shfl_xor(x, 3, 8);
  results[8] = int32_t(asc_ballot(x > 0));
  results[9] = asc_any(x > 1000) + 2 * asc_all(x > -1000);
  results[10] = asc_reduce_add(x);
  results[11] = asc_reduce_max(x);
  results[12] = asc_reduce_min(x);
  if (i % 3 == 0) {  // the other lanes go on
    results[13] = int32_t(asc_activemask());
    results[14] = asc_reduce_add(x);
  }
  results[15] = laneid() + 100 * __popc(uint32_t(lanemask_lt())) + 10000 * int32_t(i / warpSize);
  for (int32_t k = 0; k < 16; ++k) out[i * 16 + k] = results[k];
}

// A block sum by shuffles and one barrier, and counts by atomics, of three dimensions of threads.
__simt_vf__ __launch_bounds__(kThreads) inline void block(Gm<int32_t> in, Gm<int32_t> out,
                                                          Ub<int32_t> shared) {
  const uint32_t i = threadIdx.x + threadIdx.y * blockDim.x + threadIdx.z * blockDim.x * blockDim.y;
  if (i < 40) shared[i] = 0;
  asc_syncthreads();
  int32_t x = in[i];
  asc_atomic_add(shared + 8 + x % 16, 1);
  asc_atomic_max(shared + 32, x);
  asc_atomic_xor(shared + 33, x);
  int32_t sum = x;
  for (int32_t step = 16; step > 0; step /= 2) sum += asc_shfl_down(sum, uint32_t(step));
  if (laneid() == 0) shared[i / warpSize] = sum;
  asc_syncthreads();
  if (i == 0) out[0] = shared[0] + shared[1] + shared[2];
  if (i < 32) out[1 + i] = shared[8 + i];
}

__global__ __vector__ void run_warp(Gm<int32_t> in, Gm<int32_t> out) {
  asc_vf_call<warp>(dim3(kThreads), in, out);
}

__global__ __vector__ void run_block(Gm<int32_t> in, Gm<int32_t> out) {
  TPipe pipe;
  TBuf<TPosition::VECCALC> buffer;
  pipe.InitBuffer(buffer, 256);
  asc_vf_call<block>(dim3(4, 3, 8), in, out, buffer.Get<int32_t>().GetPhyAddr());
}

// Two threads a pair: each waits for the other in turn, many times.
__simt_vf__ __launch_bounds__(1024) inline void many_barriers(Gm<int32_t> out, Ub<int32_t> shared,
                                                              int32_t times) {
  const uint32_t i = threadIdx.x;
  int32_t x = int32_t(i);
  for (int32_t k = 0; k < times; ++k) {
    shared[i] = x;
    asc_syncthreads();
    x = shared[i ^ 1] + 1;
    asc_syncthreads();
  }
  out[i] = x;
}

__global__ __vector__ void run_barriers(Gm<int32_t> out, int32_t times) {
  TPipe pipe;
  TBuf<TPosition::VECCALC> buffer;
  pipe.InitBuffer(buffer, 4096);
  asc_vf_call<many_barriers>(dim3(1024), out, buffer.Get<int32_t>().GetPhyAddr(), times);
}

// out[i] = in[i] * 3 by blocks of threads, without a barrier: what an access costs.
__simt_vf__ __launch_bounds__(256) inline void triple(Gm<int32_t> in, Gm<int32_t> out,
                                                      int32_t count) {
  for (int32_t i = int32_t(threadIdx.x + blockIdx.x * blockDim.x); i < count;
       i += int32_t(blockDim.x * gridDim.x))
    out[i] = in[i] * 3;
}

__global__ __vector__ void run_triple(Gm<int32_t> in, Gm<int32_t> out, int32_t count) {
  asc_vf_call<triple>(dim3(256), in, out, count);
}

}  // namespace

TANDEM_API int32_t simt_warp(const int32_t *in, int32_t *out) {
  return TANDEM_LAUNCH(run_warp, 1, nullptr, gm_cast<int32_t>(in), gm_cast<int32_t>(out));
}

TANDEM_API int32_t simt_block(const int32_t *in, int32_t *out) {
  return TANDEM_LAUNCH_UB(run_block, 1, 256, nullptr, gm_cast<int32_t>(in), gm_cast<int32_t>(out));
}

// The same started without the bytes of its buffer: a fault.
TANDEM_API int32_t simt_block_unannounced(const int32_t *in, int32_t *out) {
  return TANDEM_LAUNCH(run_block, 1, nullptr, gm_cast<int32_t>(in), gm_cast<int32_t>(out));
}

TANDEM_API int32_t simt_barriers(int32_t *out, int32_t times) {
  return TANDEM_LAUNCH_UB(run_barriers, 1, 4096, nullptr, gm_cast<int32_t>(out), times);
}

TANDEM_API int32_t simt_triple(const int32_t *in, int32_t *out, int32_t count) {
  return TANDEM_LAUNCH(run_triple, 4, nullptr, gm_cast<int32_t>(in), gm_cast<int32_t>(out), count);
}

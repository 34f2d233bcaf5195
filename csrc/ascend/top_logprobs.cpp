// top_logprobs: the rank of a chosen value is the number of those that come before it.
//
// A block takes a row and holds the keys of its choice in UB, where each thread counts for places
// of its own.
#include "top_logprobs.h"

#include "_grid.h"
#include "_select.h"

__simt_vf__ __launch_bounds__(kThreads) inline void rank_rows(Gm<float> values, Gm<int32_t> index,
                                                              Gm<int32_t> ids, Gm<float> logprobs,
                                                              int32_t rows, int64_t width,
                                                              int32_t n, Ub<uint32_t> keys) {
  const int32_t thread = int32_t(threadIdx.x);
  for (int32_t row = int32_t(blockIdx.x); row < rows; row += int32_t(gridDim.x)) {
    Gm<float> from = values + row * width;
    Gm<int32_t> chosen = index + int64_t(row) * n;
    asc_syncthreads();
    for (int32_t i = thread; i < n; i += kThreads) {
      const int32_t id = chosen[i];
      keys[i] = id < 0 ? 0u : order_key(from[id]);
    }
    asc_syncthreads();
    for (int32_t i = thread; i < n; i += kThreads) {
      const uint32_t key = keys[i];
      int32_t rank = 0;
      for (int32_t j = 0; j < n; ++j) {
        const uint32_t other = keys[j];
        if (other > key || (other == key && j < i)) ++rank;
      }
      const int32_t id = chosen[i];
      const int64_t place = int64_t(row) * n + rank;
      ids[place] = id;
      logprobs[place] = id < 0 ? __int_as_float(int32_t(0xFF800000)) : float(from[id]);
    }
  }
}

__global__ __vector__ void rank_kernel(Gm<float> values, Gm<int32_t> index, Gm<int32_t> ids,
                                       Gm<float> logprobs, int32_t rows, int64_t width, int32_t n) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> keys;
  pipe.InitBuffer(keys, uint32_t(n) * sizeof(uint32_t));
  asc_vf_call<rank_rows>(dim3(kThreads), values, index, ids, logprobs, rows, width, n,
                         keys.Get<uint32_t>().GetPhyAddr());
}

int32_t tandem_ascend_top_logprobs(const tandem_ascend_device *device, void *stream,
                                   const float *values, const int32_t *index, int32_t *ids,
                                   float *logprobs, int64_t rows, int64_t width, int64_t n) {
  if (width < 0 || n < 1) return TANDEM_BAD_VALUE;
  if (n > 16384) return TANDEM_TOO_LARGE;
  if (const int32_t status = check_items(rows * n); status != TANDEM_OK || rows == 0) return status;
  const uint32_t bytes = (uint32_t(n) * sizeof(uint32_t) + 31) / 32 * 32;
  return TANDEM_LAUNCH_UB(rank_kernel, grid_blocks(device, rows * kThreads), bytes, stream,
                          gm_cast<float>(values), gm_cast<int32_t>(index), gm_cast<int32_t>(ids),
                          gm_cast<float>(logprobs), int32_t(rows), width, int32_t(n));
}

// adjust_logits: of the entries that name one place, the first adds up the values of all.
//
// The order decides the bits, so there are no atomics. A thread takes an entry and looks through
// the list for others of its place, in blocks of 256 entries that a block of threads holds in UB at
// a time; blocks without a row of its own range are passed over, so where the entries of a row
// stand together, as the engine sends them, few are looked through.
#include "adjust_logits.h"

#include "_block.h"
#include "_grid.h"

constexpr int32_t kNoRow = 0x7FFFFFFF;

// The list from `start` on, into UB: rows, tokens and values; row -1 past its end. Returns through
// low and high the range of rows.
__simt_callee__ inline void hold_entries(Gm<int32_t> row, Gm<int32_t> token, Gm<float> value,
                                         int32_t start, int32_t entries, Ub<int32_t> held,
                                         Ub<int32_t> scratch, int32_t &low, int32_t &high) {
  const int32_t thread = int32_t(threadIdx.x), i = start + thread;
  const int32_t at = i < entries ? int32_t(row[i]) : -1;
  held[thread] = at;
  if (at >= 0) {
    held[kThreads + thread] = int32_t(token[i]);
    held[2 * kThreads + thread] = __float_as_int(value[i]);
  }
  low = block_min(at >= 0 ? at : kNoRow, kNoRow, scratch);
  high = block_max(at, -1, scratch);
}

__simt_vf__ __launch_bounds__(kThreads) inline void adjust_entries(
    Gm<float> logits, Gm<int32_t> row, Gm<int32_t> token, Gm<float> value, int32_t entries,
    int64_t stride, Ub<int32_t> held, Ub<int32_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x), blocks = (entries + kThreads - 1) / kThreads;
  for (int32_t mine = int32_t(blockIdx.x); mine < blocks; mine += int32_t(gridDim.x)) {
    int32_t low, high;
    hold_entries(row, token, value, mine * kThreads, entries, held, scratch, low, high);
    const int32_t my_row = held[thread];
    const int32_t my_token = my_row >= 0 ? int32_t(held[kThreads + thread]) : 0;
    const int32_t entry = mine * int32_t(kThreads) + thread;
    float total = -0.0f;  // keeps the bits of a single value
    bool first = my_row >= 0;
    for (int32_t block = 0; block < blocks; ++block) {
      asc_syncthreads();
      int32_t from, to;
      hold_entries(row, token, value, block * kThreads, entries, held, scratch, from, to);
      if (from > high || to < low) continue;  // the same for all threads
      for (int32_t i = 0; i < kThreads; ++i) {
        if (my_row < 0 || held[i] != my_row || held[kThreads + i] != my_token) continue;
        total += __int_as_float(held[2 * kThreads + i]);
        first = first && block * int32_t(kThreads) + i >= entry;
      }
    }
    asc_syncthreads();
    if (first) logits[my_row * stride + my_token] += total;
  }
}

__global__ __vector__ void adjust_kernel(Gm<float> logits, Gm<int32_t> row, Gm<int32_t> token,
                                         Gm<float> value, int32_t entries, int64_t stride) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> held, scratch;
  pipe.InitBuffer(held, 3 * kThreads * sizeof(int32_t));
  pipe.InitBuffer(scratch, 32 * sizeof(int32_t));
  asc_vf_call<adjust_entries>(dim3(kThreads), logits, row, token, value, entries, stride,
                              held.Get<int32_t>().GetPhyAddr(),
                              scratch.Get<int32_t>().GetPhyAddr());
}

int32_t tandem_ascend_adjust_logits(const tandem_ascend_device *device, void *stream, float *logits,
                                    const int32_t *row, const int32_t *token, const float *value,
                                    int64_t entries, int64_t stride) {
  if (stride < 0) return TANDEM_BAD_VALUE;
  if (const int32_t status = check_items(entries); status != TANDEM_OK || entries == 0)
    return status;
  return TANDEM_LAUNCH_UB(adjust_kernel, grid_blocks(device, entries), 4096, stream,
                          gm_cast<float>(logits), gm_cast<int32_t>(row), gm_cast<int32_t>(token),
                          gm_cast<float>(value), int32_t(entries), stride);
}

// SIMT kernels over items that do not depend on one another: item i of a launch is done by thread
// i of all its threads, and item i + their number by the same one again.
#pragma once

#include "kernel.h"

// Threads of a block: so few that each has all the registers there are for one.
constexpr int64_t kThreads = 256;

// What SIMT functions leave of UB to tensors: the rest is their data cache.
inline int64_t simt_ub_bytes(const tandem_ascend_device *device) {
  return device->ub_bytes - (32 << 10);
}

// Items are counted in 32 bits, which keeps divisions short: the last step must not go past them.
inline int32_t check_items(int64_t items) {
  if (items < 0) return TANDEM_BAD_VALUE;
  return items > INT32_MAX - kThreads * 65535 ? TANDEM_TOO_LARGE : TANDEM_OK;
}

// Blocks of a launch: as many as have items, at most one a vector core.
inline int64_t grid_blocks(const tandem_ascend_device *device, int64_t items) {
  const int64_t busy = (items + kThreads - 1) / kThreads;
  return busy < device->vector_cores ? busy : device->vector_cores;
}

// Where a thread begins, and how far apart its items are.
__simt_callee__ inline int32_t first_item() {
  return int32_t(blockIdx.x * blockDim.x + threadIdx.x);
}
__simt_callee__ inline int32_t item_step() { return int32_t(gridDim.x * blockDim.x); }

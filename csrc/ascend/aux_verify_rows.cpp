// aux.verify_rows in two launches: how many drafts of each request get a row, then where its rows
// stand.
//
// A draft gets a row when fewer candidates stand before it than there are rows left. A warp counts
// these for the drafts of a request by comparing them with those of all, which lie in UB: they are
// few, and this is cheaper than a sort.
#include "aux_verify_rows.h"

#include "_grid.h"

namespace {

constexpr int32_t kLanes = 32;
constexpr float kNone = -__builtin_inff();  // the rate of a draft that is no candidate

// The rates that the drafts of a request go by.
__simt_callee__ inline void rate_drafts(Gm<float> rates, Gm<int32_t> drafts, int32_t block,
                                        int32_t room, Ub<float> standing) {
  float lowest = -kNone;
  for (int32_t place = 0; place < block; ++place) {
    if (place < room && drafts[place] < 0) room = place;
    if (place < room) {
      const float rate = rates[place];
      lowest = fminf(lowest, isnan(rate) ? 0.0f : rate);
    }
    standing[place] = place < room ? lowest : kNone;
  }
}

// How many drafts stand before draft `own`. All lanes of a warp take part.
__simt_callee__ inline int32_t count_ahead(Ub<float> standing, int32_t drafts, int32_t own) {
  const float rate = standing[own];
  int32_t ahead = 0;
  for (int32_t other = int32_t(threadIdx.x) % kLanes; other < drafts; other += kLanes) {
    const float theirs = standing[other];
    ahead += theirs > rate || (theirs == rate && other < own);
  }
  return asc_reduce_add(ahead);
}

// How many requests have a slot. All lanes of a warp take part.
__simt_callee__ inline int32_t count_slots(Gm<int32_t> slots, int32_t requests) {
  int32_t found = 0;
  for (int32_t request = int32_t(threadIdx.x) % kLanes; request < requests; request += kLanes)
    found += slots[request] >= 0;
  return asc_reduce_add(found);
}

__simt_vf__ __launch_bounds__(kThreads) inline void share(Gm<int32_t> slots, Gm<float> rates,
                                                          Gm<int32_t> drafts, Gm<int32_t> length,
                                                          Gm<int32_t> limit, Gm<int32_t> most,
                                                          Gm<int32_t> counts, Ub<float> standing,
                                                          int32_t requests, int32_t block,
                                                          int32_t rows) {
  for (int32_t request = threadIdx.x; request < requests; request += blockDim.x) {
    const int32_t slot = slots[request];
    int32_t room = 0;
    if (slot >= 0) room = min(int32_t(limit[slot]) - int32_t(length[slot]) - 2, most[request]);
    rate_drafts(rates + int64_t(slot) * block, drafts + int64_t(slot) * block, block, room,
                standing + int64_t(request) * block);
  }
  asc_syncthreads();
  const int32_t free = rows - count_slots(slots, requests);
  for (int32_t request = first_item() / kLanes; request < requests;
       request += item_step() / kLanes) {
    const int32_t begin = request * block;
    int32_t chosen = 0;
    while (chosen < block && standing[begin + chosen] > kNone &&
           count_ahead(standing, requests * block, begin + chosen) < free)
      ++chosen;
    if (threadIdx.x % kLanes == 0) counts[request] = slots[request] < 0 ? 0 : 1 + chosen;
  }
}

// Rows of the requests before `end`. All lanes of a warp take part.
__simt_callee__ inline int32_t count_rows(Gm<int32_t> counts, int32_t end) {
  int32_t rows = 0;
  for (int32_t request = int32_t(threadIdx.x) % kLanes; request < end; request += kLanes)
    rows += counts[request];
  return asc_reduce_add(rows);
}

__simt_vf__ __launch_bounds__(kThreads) inline void place(Gm<int32_t> slots, Gm<int32_t> counts,
                                                          Gm<int32_t> slot, Gm<int32_t> offset,
                                                          Gm<int32_t> chunk_start,
                                                          Gm<int32_t> chunk_end, int32_t requests,
                                                          int32_t rows) {
  for (int32_t request = first_item() / kLanes; request < requests;
       request += item_step() / kLanes) {
    const int32_t start = count_rows(counts, request), end = start + counts[request];
    for (int32_t row = start + int32_t(threadIdx.x) % kLanes; row < end; row += kLanes) {
      slot[row] = slots[request];
      offset[row] = row - start;
      chunk_start[row] = start;
      chunk_end[row] = end;
    }
  }
  for (int32_t row = count_rows(counts, requests) + first_item(); row < rows; row += item_step()) {
    slot[row] = -1;
    offset[row] = 0;
    chunk_start[row] = row;
    chunk_end[row] = row + 1;
  }
}

__global__ __vector__ void share_kernel(Gm<int32_t> slots, Gm<float> rates, Gm<int32_t> drafts,
                                        Gm<int32_t> length, Gm<int32_t> limit, Gm<int32_t> most,
                                        Gm<int32_t> counts, int32_t requests, int32_t block,
                                        int32_t rows) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> buffer;
  pipe.InitBuffer(buffer, uint32_t(requests) * block * sizeof(float));
  asc_vf_call<share>(dim3(kThreads), slots, rates, drafts, length, limit, most, counts,
                     buffer.Get<float>().GetPhyAddr(), requests, block, rows);
}

__global__ __vector__ void place_kernel(Gm<int32_t> slots, Gm<int32_t> counts, Gm<int32_t> slot,
                                        Gm<int32_t> offset, Gm<int32_t> chunk_start,
                                        Gm<int32_t> chunk_end, int32_t requests, int32_t rows) {
  asc_vf_call<place>(dim3(kThreads), slots, counts, slot, offset, chunk_start, chunk_end, requests,
                     rows);
}

}  // namespace

int32_t tandem_ascend_aux_verify_rows(const tandem_ascend_device *device, void *stream,
                                      const int32_t *slots, const float *rates,
                                      const int32_t *drafts, const int32_t *length,
                                      const int32_t *limit, const int32_t *most, int32_t *slot,
                                      int32_t *offset, int32_t *chunk_start, int32_t *chunk_end,
                                      int32_t *counts, int64_t requests, int32_t block,
                                      int64_t rows) {
  if (requests < 0 || block <= 0 || rows < requests) return TANDEM_BAD_VALUE;
  if (const int32_t status = check_items(rows); status != TANDEM_OK || rows == 0) return status;
  const int64_t lanes = requests * kLanes;
  const int64_t standing = (requests * block * int64_t(sizeof(float)) + 31) / 32 * 32;
  if (standing > simt_ub_bytes(device)) return TANDEM_TOO_LARGE;
  if (requests != 0) {
    const int32_t status =
        TANDEM_LAUNCH_UB(share_kernel, grid_blocks(device, lanes), standing, stream,
                         gm_cast<int32_t>(slots), gm_cast<float>(rates), gm_cast<int32_t>(drafts),
                         gm_cast<int32_t>(length), gm_cast<int32_t>(limit), gm_cast<int32_t>(most),
                         gm_cast<int32_t>(counts), int32_t(requests), block, int32_t(rows));
    if (status != TANDEM_OK) return status;
  }
  return TANDEM_LAUNCH(place_kernel, grid_blocks(device, lanes > rows ? lanes : rows), stream,
                       gm_cast<int32_t>(slots), gm_cast<int32_t>(counts), gm_cast<int32_t>(slot),
                       gm_cast<int32_t>(offset), gm_cast<int32_t>(chunk_start),
                       gm_cast<int32_t>(chunk_end), int32_t(requests), int32_t(rows));
}

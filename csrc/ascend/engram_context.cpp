// engram_context in two launches, in both of which a thread takes a row: contexts, then history.
#include "engram_context.h"

#include "_grid.h"

namespace {

// The compressed id of a row of this step, -1 for a token of an image.
__simt_callee__ inline int32_t own_token(Gm<int32_t> ids, Gm<int32_t> roles, Gm<int32_t> vocabulary,
                                         int32_t row) {
  if (roles[row] != 0) return -1;
  return vocabulary[ids[row]];
}

__simt_vf__ __launch_bounds__(kThreads) inline void look_back(
    Gm<int32_t> ids, Gm<int32_t> positions, Gm<int32_t> slot, Gm<int32_t> chunk_start,
    Gm<int32_t> roles, Gm<int32_t> vocabulary, Gm<int32_t> history, Gm<int32_t> context,
    int32_t rows, int32_t slots, int32_t ring, int32_t pad, int32_t n) {
  for (int32_t row = first_item(); row < rows; row += item_step()) {
    const int32_t position = positions[row], request = slot[row], start = chunk_start[row];
    const Gm<int32_t> before = history + int64_t(request < 0 ? slots - 1 : request) * ring;
    bool blocked = false;  // by the start of the sequence, or by the nearest image
    for (int32_t back = 0; back < n; ++back) {
      int32_t token = -1;
      if (!blocked && position >= back)
        token = row - back >= start ? own_token(ids, roles, vocabulary, row - back)
                                    : int32_t(before[(position - back) % ring]);
      blocked = token < 0;
      context[int64_t(row) * n + back] = blocked ? pad : token;
    }
  }
}

__simt_vf__ __launch_bounds__(kThreads) inline void remember(
    Gm<int32_t> ids, Gm<int32_t> positions, Gm<int32_t> slot, Gm<int32_t> chunk_end,
    Gm<int32_t> roles, Gm<int32_t> vocabulary, Gm<int32_t> history, int32_t rows, int32_t ring) {
  for (int32_t row = first_item(); row < rows; row += item_step()) {
    const int32_t request = slot[row];
    if (request < 0 || row < chunk_end[row] - ring) continue;
    history[int64_t(request) * ring + positions[row] % ring] =
        own_token(ids, roles, vocabulary, row);
  }
}

__global__ __vector__ void look_back_kernel(Gm<int32_t> ids, Gm<int32_t> positions,
                                            Gm<int32_t> slot, Gm<int32_t> chunk_start,
                                            Gm<int32_t> roles, Gm<int32_t> vocabulary,
                                            Gm<int32_t> history, Gm<int32_t> context, int32_t rows,
                                            int32_t slots, int32_t ring, int32_t pad, int32_t n) {
  asc_vf_call<look_back>(dim3(kThreads), ids, positions, slot, chunk_start, roles, vocabulary,
                         history, context, rows, slots, ring, pad, n);
}

__global__ __vector__ void remember_kernel(Gm<int32_t> ids, Gm<int32_t> positions, Gm<int32_t> slot,
                                           Gm<int32_t> chunk_end, Gm<int32_t> roles,
                                           Gm<int32_t> vocabulary, Gm<int32_t> history,
                                           int32_t rows, int32_t ring) {
  asc_vf_call<remember>(dim3(kThreads), ids, positions, slot, chunk_end, roles, vocabulary, history,
                        rows, ring);
}

}  // namespace

int32_t tandem_ascend_engram_context(const tandem_ascend_device *device, void *stream,
                                     const int32_t *ids, const int32_t *positions,
                                     const int32_t *slot, const int32_t *chunk_start,
                                     const int32_t *chunk_end, const int32_t *roles,
                                     const int32_t *vocabulary, int32_t *history, int32_t *context,
                                     int64_t rows, int32_t slots, int32_t ring, int32_t pad,
                                     int32_t n) {
  if (slots <= 0 || ring <= 0 || n < 0) return TANDEM_BAD_VALUE;
  if (const int32_t status = check_items(rows); status != TANDEM_OK || rows == 0) return status;
  const int32_t status = TANDEM_LAUNCH(
      look_back_kernel, grid_blocks(device, rows), stream, gm_cast<int32_t>(ids),
      gm_cast<int32_t>(positions), gm_cast<int32_t>(slot), gm_cast<int32_t>(chunk_start),
      gm_cast<int32_t>(roles), gm_cast<int32_t>(vocabulary), gm_cast<int32_t>(history),
      gm_cast<int32_t>(context), int32_t(rows), slots, ring, pad, n);
  if (status != TANDEM_OK) return status;
  return TANDEM_LAUNCH(remember_kernel, grid_blocks(device, rows), stream, gm_cast<int32_t>(ids),
                       gm_cast<int32_t>(positions), gm_cast<int32_t>(slot),
                       gm_cast<int32_t>(chunk_end), gm_cast<int32_t>(roles),
                       gm_cast<int32_t>(vocabulary), gm_cast<int32_t>(history), int32_t(rows),
                       ring);
}

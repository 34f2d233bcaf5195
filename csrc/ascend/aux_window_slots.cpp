// aux.window_slots: a thread takes one position of a row's window.
#include "aux_window_slots.h"

#include "_grid.h"
#include "_paging.h"

namespace {

__simt_vf__ __launch_bounds__(kThreads) inline void window_slots(
    Gm<int32_t> positions, Gm<int32_t> slot, Gm<int32_t> table, Gm<int32_t> first, Gm<int32_t> out,
    int32_t items, int32_t columns, int32_t block_entries, int32_t window) {
  for (int32_t item = first_item(); item < items; item += item_step()) {
    const int32_t row = item / window, request = slot[row];
    int32_t found = -1;
    if (request >= 0) {
      const int32_t read = positions[row] - (window - 1) + item % window, lowest = first[request];
      if (read >= max(lowest, 0))
        found = look_up(read, table + int64_t(request) * columns, columns, block_entries, true);
    }
    out[item] = found;
  }
}

__global__ __vector__ void window_slots_kernel(Gm<int32_t> positions, Gm<int32_t> slot,
                                               Gm<int32_t> table, Gm<int32_t> first,
                                               Gm<int32_t> out, int32_t items, int32_t columns,
                                               int32_t block_entries, int32_t window) {
  asc_vf_call<window_slots>(dim3(kThreads), positions, slot, table, first, out, items, columns,
                            block_entries, window);
}

}  // namespace

int32_t tandem_ascend_aux_window_slots(const tandem_ascend_device *device, void *stream,
                                       const int32_t *positions, const int32_t *slot,
                                       const int32_t *table, const int32_t *first, int32_t *out,
                                       int64_t rows, int32_t columns, int32_t block_entries,
                                       int32_t window) {
  if (columns <= 0 || block_entries <= 0 || window <= 0) return TANDEM_BAD_VALUE;
  const int64_t items = rows * window;
  if (const int32_t status = check_items(items); status != TANDEM_OK || items == 0) return status;
  return TANDEM_LAUNCH(window_slots_kernel, grid_blocks(device, items), stream,
                       gm_cast<int32_t>(positions), gm_cast<int32_t>(slot), gm_cast<int32_t>(table),
                       gm_cast<int32_t>(first), gm_cast<int32_t>(out), int32_t(items), columns,
                       block_entries, window);
}

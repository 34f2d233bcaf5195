// aux.entry_slots: a thread takes a row and looks up one block.
#include "aux_entry_slots.h"

#include "_grid.h"
#include "_paging.h"

namespace {

__simt_vf__ __launch_bounds__(kThreads) inline void entry_slots(
    Gm<int32_t> positions, Gm<int32_t> slot, Gm<int32_t> table, Gm<int32_t> out, int32_t rows,
    int32_t columns, int32_t block_entries, int32_t ratio, int32_t wrap) {
  for (int32_t row = first_item(); row < rows; row += item_step()) {
    const int32_t position = positions[row], request = slot[row];
    const bool complete = request >= 0 && (position + 1) % ratio == 0;
    out[row] = complete ? look_up(position / ratio, table + int64_t(request) * columns, columns,
                                  block_entries, wrap != 0)
                        : -1;
  }
}

__global__ __vector__ void entry_slots_kernel(Gm<int32_t> positions, Gm<int32_t> slot,
                                              Gm<int32_t> table, Gm<int32_t> out, int32_t rows,
                                              int32_t columns, int32_t block_entries, int32_t ratio,
                                              int32_t wrap) {
  asc_vf_call<entry_slots>(dim3(kThreads), positions, slot, table, out, rows, columns,
                           block_entries, ratio, wrap);
}

}  // namespace

int32_t tandem_ascend_aux_entry_slots(const tandem_ascend_device *device, void *stream,
                                      const int32_t *positions, const int32_t *slot,
                                      const int32_t *table, int32_t *out, int64_t rows,
                                      int32_t columns, int32_t block_entries, int32_t ratio,
                                      int32_t wrap) {
  if (columns <= 0 || block_entries <= 0 || ratio <= 0) return TANDEM_BAD_VALUE;
  if (const int32_t status = check_items(rows); status != TANDEM_OK || rows == 0) return status;
  return TANDEM_LAUNCH(entry_slots_kernel, grid_blocks(device, rows), stream,
                       gm_cast<int32_t>(positions), gm_cast<int32_t>(slot), gm_cast<int32_t>(table),
                       gm_cast<int32_t>(out), int32_t(rows), columns, block_entries, ratio, wrap);
}

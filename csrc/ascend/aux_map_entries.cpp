// aux.map_entries: a thread takes an entry.
#include "aux_map_entries.h"

#include "_grid.h"
#include "_paging.h"

namespace {

__simt_vf__ __launch_bounds__(kThreads) inline void map_entries(Gm<int32_t> entries,
                                                                Gm<int32_t> slot, Gm<int32_t> table,
                                                                Gm<int32_t> out, int32_t items,
                                                                int32_t width, int32_t columns,
                                                                int32_t block_entries) {
  for (int32_t item = first_item(); item < items; item += item_step()) {
    const int32_t entry = entries[item], request = slot[item / width];
    out[item] = entry >= 0 && request >= 0 ? look_up(entry, table + int64_t(request) * columns,
                                                     columns, block_entries, false)
                                           : -1;
  }
}

__global__ __vector__ void map_entries_kernel(Gm<int32_t> entries, Gm<int32_t> slot,
                                              Gm<int32_t> table, Gm<int32_t> out, int32_t items,
                                              int32_t width, int32_t columns,
                                              int32_t block_entries) {
  asc_vf_call<map_entries>(dim3(kThreads), entries, slot, table, out, items, width, columns,
                           block_entries);
}

}  // namespace

int32_t tandem_ascend_aux_map_entries(const tandem_ascend_device *device, void *stream,
                                      const int32_t *entries, const int32_t *slot,
                                      const int32_t *table, int32_t *out, int64_t rows,
                                      int32_t width, int32_t columns, int32_t block_entries) {
  if (columns <= 0 || block_entries <= 0) return TANDEM_BAD_VALUE;
  const int64_t items = rows * width;
  if (const int32_t status = check_items(items); status != TANDEM_OK || items == 0) return status;
  return TANDEM_LAUNCH(map_entries_kernel, grid_blocks(device, items), stream,
                       gm_cast<int32_t>(entries), gm_cast<int32_t>(slot), gm_cast<int32_t>(table),
                       gm_cast<int32_t>(out), int32_t(items), width, columns, block_entries);
}

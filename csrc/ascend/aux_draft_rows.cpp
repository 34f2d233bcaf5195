// aux.draft_rows: a thread takes a key; what belongs to a row is written beside its first key.
#include "aux_draft_rows.h"

#include "_grid.h"

namespace {

__simt_vf__ __launch_bounds__(kThreads) inline void draft_rows(
    Gm<int32_t> anchor, Gm<int32_t> position, Gm<int32_t> slot, Gm<int32_t> ids,
    Gm<int32_t> positions, Gm<int32_t> row_slot, Gm<int32_t> context, Gm<int32_t> own,
    Gm<int32_t> keys, int32_t items, int32_t block, int32_t noise) {
  for (int32_t item = first_item(); item < items; item += item_step()) {
    const int32_t row = item / block, key = item % block, request = row / block, step = row % block;
    const int32_t token = anchor[request], owner = slot[request];
    const bool alive = owner >= 0 && token >= 0;
    keys[item] = alive ? owner * block + key : -1;
    if (key != 0) continue;
    const int32_t first = position[request];
    ids[row] = !alive ? 0 : step == 0 ? token : noise;
    positions[row] = alive ? first + step : 0;
    row_slot[row] = alive ? owner : -1;
    context[row] = alive ? first - 1 : 0;
    own[row] = alive ? owner * block + step : -1;
  }
}

__global__ __vector__ void draft_rows_kernel(Gm<int32_t> anchor, Gm<int32_t> position,
                                             Gm<int32_t> slot, Gm<int32_t> ids,
                                             Gm<int32_t> positions, Gm<int32_t> row_slot,
                                             Gm<int32_t> context, Gm<int32_t> own, Gm<int32_t> keys,
                                             int32_t items, int32_t block, int32_t noise) {
  asc_vf_call<draft_rows>(dim3(kThreads), anchor, position, slot, ids, positions, row_slot, context,
                          own, keys, items, block, noise);
}

}  // namespace

int32_t tandem_ascend_aux_draft_rows(const tandem_ascend_device *device, void *stream,
                                     const int32_t *anchor, const int32_t *position,
                                     const int32_t *slot, int32_t *ids, int32_t *positions,
                                     int32_t *row_slot, int32_t *context, int32_t *own,
                                     int32_t *keys, int64_t requests, int32_t block,
                                     int32_t noise) {
  if (block <= 0) return TANDEM_BAD_VALUE;
  const int64_t items = requests * block * block;
  if (const int32_t status = check_items(items); status != TANDEM_OK || items == 0) return status;
  return TANDEM_LAUNCH(draft_rows_kernel, grid_blocks(device, items), stream,
                       gm_cast<int32_t>(anchor), gm_cast<int32_t>(position), gm_cast<int32_t>(slot),
                       gm_cast<int32_t>(ids), gm_cast<int32_t>(positions),
                       gm_cast<int32_t>(row_slot), gm_cast<int32_t>(context), gm_cast<int32_t>(own),
                       gm_cast<int32_t>(keys), int32_t(items), block, noise);
}

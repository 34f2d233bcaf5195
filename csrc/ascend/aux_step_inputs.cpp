// aux.step_inputs: a thread takes a row.
#include "aux_step_inputs.h"

#include "_grid.h"

namespace {

__simt_vf__ __launch_bounds__(kThreads) inline void step_inputs(
    Gm<int32_t> host_ids, Gm<int32_t> host_positions, Gm<int32_t> from_device,
    Gm<int32_t> host_slot, Gm<int32_t> last_token, Gm<int32_t> length, Gm<int32_t> limit,
    Gm<int32_t> drafts, Gm<int32_t> ids, Gm<int32_t> positions, Gm<int32_t> slot, int32_t rows,
    int32_t block) {
  for (int32_t row = first_item(); row < rows; row += item_step()) {
    const int32_t request = host_slot[row];
    int32_t token = -1, position = 0;
    bool alive = false;
    if (request >= 0) {
      const int32_t source = from_device[row];
      position = host_positions[row];
      if (source == 0) {
        token = host_ids[row];
      } else {
        position += length[request];
        if (source == 1 || block == 0)
          token = last_token[request];
        else
          token = drafts[int64_t(request) * block + source - 2];
      }
      alive = token >= 0 && position < limit[request];
    }
    ids[row] = alive ? token : 0;
    positions[row] = alive ? position : 0;
    slot[row] = alive ? request : -1;
  }
}

__global__ __vector__ void step_inputs_kernel(Gm<int32_t> host_ids, Gm<int32_t> host_positions,
                                              Gm<int32_t> from_device, Gm<int32_t> host_slot,
                                              Gm<int32_t> last_token, Gm<int32_t> length,
                                              Gm<int32_t> limit, Gm<int32_t> drafts,
                                              Gm<int32_t> ids, Gm<int32_t> positions,
                                              Gm<int32_t> slot, int32_t rows, int32_t block) {
  asc_vf_call<step_inputs>(dim3(kThreads), host_ids, host_positions, from_device, host_slot,
                           last_token, length, limit, drafts, ids, positions, slot, rows, block);
}

}  // namespace

int32_t tandem_ascend_aux_step_inputs(const tandem_ascend_device *device, void *stream,
                                      const int32_t *host_ids, const int32_t *host_positions,
                                      const int32_t *from_device, const int32_t *host_slot,
                                      const int32_t *last_token, const int32_t *length,
                                      const int32_t *limit, const int32_t *drafts, int32_t *ids,
                                      int32_t *positions, int32_t *slot, int64_t rows,
                                      int32_t block) {
  if (block < 0 || (drafts == nullptr) != (block == 0)) return TANDEM_BAD_VALUE;
  if (const int32_t status = check_items(rows); status != TANDEM_OK || rows == 0) return status;
  return TANDEM_LAUNCH(step_inputs_kernel, grid_blocks(device, rows), stream,
                       gm_cast<int32_t>(host_ids), gm_cast<int32_t>(host_positions),
                       gm_cast<int32_t>(from_device), gm_cast<int32_t>(host_slot),
                       gm_cast<int32_t>(last_token), gm_cast<int32_t>(length),
                       gm_cast<int32_t>(limit), gm_cast<int32_t>(drafts), gm_cast<int32_t>(ids),
                       gm_cast<int32_t>(positions), gm_cast<int32_t>(slot), int32_t(rows), block);
}

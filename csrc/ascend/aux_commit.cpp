// aux.commit: a thread takes a row.
#include "aux_commit.h"

#include "_grid.h"

namespace {

__simt_vf__ __launch_bounds__(kThreads) inline void commit(Gm<int32_t> tokens, Gm<int32_t> slots,
                                                           Gm<int32_t> positions,
                                                           Gm<int32_t> last_token,
                                                           Gm<int32_t> length, int32_t rows) {
  for (int32_t row = first_item(); row < rows; row += item_step()) {
    const int32_t slot = slots[row];
    if (slot < 0) continue;
    last_token[slot] = tokens[row];
    length[slot] = positions[row] + 1;
  }
}

__global__ __vector__ void commit_kernel(Gm<int32_t> tokens, Gm<int32_t> slots,
                                         Gm<int32_t> positions, Gm<int32_t> last_token,
                                         Gm<int32_t> length, int32_t rows) {
  asc_vf_call<commit>(dim3(kThreads), tokens, slots, positions, last_token, length, rows);
}

}  // namespace

int32_t tandem_ascend_aux_commit(const tandem_ascend_device *device, void *stream,
                                 const int32_t *tokens, const int32_t *slots,
                                 const int32_t *positions, int32_t *last_token, int32_t *length,
                                 int64_t rows) {
  if (const int32_t status = check_items(rows); status != TANDEM_OK || rows == 0) return status;
  return TANDEM_LAUNCH(commit_kernel, grid_blocks(device, rows), stream, gm_cast<int32_t>(tokens),
                       gm_cast<int32_t>(slots), gm_cast<int32_t>(positions),
                       gm_cast<int32_t>(last_token), gm_cast<int32_t>(length), int32_t(rows));
}

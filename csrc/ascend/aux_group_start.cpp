// aux.group_start: a thread takes a row.
#include "aux_group_start.h"

#include "_grid.h"

namespace {

__simt_vf__ __launch_bounds__(kThreads) inline void group_start(Gm<int32_t> positions,
                                                                Gm<int32_t> out, int32_t rows,
                                                                int32_t ratio) {
  for (int32_t row = first_item(); row < rows; row += item_step()) {
    const int32_t position = positions[row];
    out[row] = position - position % ratio;
  }
}

__global__ __vector__ void group_start_kernel(Gm<int32_t> positions, Gm<int32_t> out, int32_t rows,
                                              int32_t ratio) {
  asc_vf_call<group_start>(dim3(kThreads), positions, out, rows, ratio);
}

}  // namespace

int32_t tandem_ascend_aux_group_start(const tandem_ascend_device *device, void *stream,
                                      const int32_t *positions, int32_t *out, int64_t rows,
                                      int32_t ratio) {
  if (ratio <= 0) return TANDEM_BAD_VALUE;
  if (const int32_t status = check_items(rows); status != TANDEM_OK || rows == 0) return status;
  return TANDEM_LAUNCH(group_start_kernel, grid_blocks(device, rows), stream,
                       gm_cast<int32_t>(positions), gm_cast<int32_t>(out), int32_t(rows), ratio);
}

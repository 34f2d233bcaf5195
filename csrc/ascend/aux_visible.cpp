// aux.visible: a thread takes a row.
#include "aux_visible.h"

#include "_grid.h"

namespace {

__simt_vf__ __launch_bounds__(kThreads) inline void visible(Gm<int32_t> positions, Gm<int32_t> slot,
                                                            Gm<int32_t> out, int32_t rows,
                                                            int32_t ratio) {
  for (int32_t row = first_item(); row < rows; row += item_step())
    out[row] = slot[row] < 0 ? 0 : (positions[row] + 1) / ratio;
}

__global__ __vector__ void visible_kernel(Gm<int32_t> positions, Gm<int32_t> slot, Gm<int32_t> out,
                                          int32_t rows, int32_t ratio) {
  asc_vf_call<visible>(dim3(kThreads), positions, slot, out, rows, ratio);
}

}  // namespace

int32_t tandem_ascend_aux_visible(const tandem_ascend_device *device, void *stream,
                                  const int32_t *positions, const int32_t *slot, int32_t *out,
                                  int64_t rows, int32_t ratio) {
  if (ratio <= 0) return TANDEM_BAD_VALUE;
  if (const int32_t status = check_items(rows); status != TANDEM_OK || rows == 0) return status;
  return TANDEM_LAUNCH(visible_kernel, grid_blocks(device, rows), stream,
                       gm_cast<int32_t>(positions), gm_cast<int32_t>(slot), gm_cast<int32_t>(out),
                       int32_t(rows), ratio);
}

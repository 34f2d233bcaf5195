// aux.take: a thread takes one index.
#include "aux_take.h"

#include "_grid.h"

namespace {

__simt_vf__ __launch_bounds__(kThreads) inline void take(Gm<int32_t> a, Gm<int32_t> index,
                                                         Gm<int32_t> out, int32_t items,
                                                         int32_t width, int32_t wanted) {
  for (int32_t item = first_item(); item < items; item += item_step()) {
    const int32_t column = index[item];
    int32_t found = -1;
    if (column >= 0) found = a[int64_t(item / wanted) * width + column];
    out[item] = found;
  }
}

__global__ __vector__ void take_kernel(Gm<int32_t> a, Gm<int32_t> index, Gm<int32_t> out,
                                       int32_t items, int32_t width, int32_t wanted) {
  asc_vf_call<take>(dim3(kThreads), a, index, out, items, width, wanted);
}

}  // namespace

int32_t tandem_ascend_aux_take(const tandem_ascend_device *device, void *stream, const int32_t *a,
                               const int32_t *index, int32_t *out, int64_t rows, int32_t width,
                               int32_t wanted) {
  const int64_t items = rows * wanted;
  if (const int32_t status = check_items(items); status != TANDEM_OK || items == 0) return status;
  return TANDEM_LAUNCH(take_kernel, grid_blocks(device, items), stream, gm_cast<int32_t>(a),
                       gm_cast<int32_t>(index), gm_cast<int32_t>(out), int32_t(items), width,
                       wanted);
}

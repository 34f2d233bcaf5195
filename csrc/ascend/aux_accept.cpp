// aux.accept: a thread takes a request, whose rows are one more than the drafts of a block.
#include "aux_accept.h"

#include "_grid.h"

namespace {

__simt_vf__ __launch_bounds__(kThreads) inline void accept(Gm<int32_t> token, Gm<int32_t> accepted,
                                                           Gm<int32_t> first, Gm<int32_t> count,
                                                           Gm<int32_t> base, Gm<int32_t> slots,
                                                           Gm<int32_t> last_token,
                                                           Gm<int32_t> length, Gm<int32_t> emitted,
                                                           int32_t requests) {
  for (int32_t request = first_item(); request < requests; request += item_step()) {
    const int32_t rows = count[request], start = first[request], slot = slots[request];
    int32_t last = 0;  // the first row that judges and refuses, else the last of the segment
    while (last + 1 < rows && accepted[start + last] != 0) ++last;
    const int32_t found = rows > 0 ? last + 1 : 0;
    emitted[request] = found;
    if (rows <= 0 || slot < 0) continue;
    last_token[slot] = token[start + last];
    length[slot] = base[request] + found;
  }
}

__global__ __vector__ void accept_kernel(Gm<int32_t> token, Gm<int32_t> accepted, Gm<int32_t> first,
                                         Gm<int32_t> count, Gm<int32_t> base, Gm<int32_t> slots,
                                         Gm<int32_t> last_token, Gm<int32_t> length,
                                         Gm<int32_t> emitted, int32_t requests) {
  asc_vf_call<accept>(dim3(kThreads), token, accepted, first, count, base, slots, last_token,
                      length, emitted, requests);
}

}  // namespace

int32_t tandem_ascend_aux_accept(const tandem_ascend_device *device, void *stream,
                                 const int32_t *token, const int32_t *accepted,
                                 const int32_t *first, const int32_t *count, const int32_t *base,
                                 const int32_t *slots, int32_t *last_token, int32_t *length,
                                 int32_t *emitted, int64_t requests) {
  if (const int32_t status = check_items(requests); status != TANDEM_OK || requests == 0)
    return status;
  return TANDEM_LAUNCH(accept_kernel, grid_blocks(device, requests), stream,
                       gm_cast<int32_t>(token), gm_cast<int32_t>(accepted), gm_cast<int32_t>(first),
                       gm_cast<int32_t>(count), gm_cast<int32_t>(base), gm_cast<int32_t>(slots),
                       gm_cast<int32_t>(last_token), gm_cast<int32_t>(length),
                       gm_cast<int32_t>(emitted), int32_t(requests));
}

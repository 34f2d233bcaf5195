// penalize_logits: a thread takes an entry; padding neither reads nor writes a logit.
#include "penalize_logits.h"

#include "_elementary.h"
#include "_grid.h"

__simt_vf__ __launch_bounds__(kThreads) inline void penalize_entries(
    Gm<float> logits, Gm<int32_t> row, Gm<int32_t> token, Gm<float> repetition, Gm<float> minus,
    int32_t entries, int64_t stride) {
  for (int32_t i = first_item(); i < entries; i += item_step()) {
    const int32_t at = row[i];
    if (at < 0) continue;
    const int64_t place = at * stride + token[i];
    const float old = logits[place], factor = repetition[i];
    const float scaled = old > 0.0f ? divide(old, factor) : old * factor;
    logits[place] = scaled - float(minus[i]);
  }
}

__global__ __vector__ void penalize_kernel(Gm<float> logits, Gm<int32_t> row, Gm<int32_t> token,
                                           Gm<float> repetition, Gm<float> minus, int32_t entries,
                                           int64_t stride) {
  asc_vf_call<penalize_entries>(dim3(kThreads), logits, row, token, repetition, minus, entries,
                                stride);
}

int32_t tandem_ascend_penalize_logits(const tandem_ascend_device *device, void *stream,
                                      float *logits, const int32_t *row, const int32_t *token,
                                      const float *repetition, const float *minus, int64_t entries,
                                      int64_t stride) {
  if (stride < 0) return TANDEM_BAD_VALUE;
  if (const int32_t status = check_items(entries); status != TANDEM_OK || entries == 0)
    return status;
  return TANDEM_LAUNCH(penalize_kernel, grid_blocks(device, entries), stream,
                       gm_cast<float>(logits), gm_cast<int32_t>(row), gm_cast<int32_t>(token),
                       gm_cast<float>(repetition), gm_cast<float>(minus), int32_t(entries), stride);
}

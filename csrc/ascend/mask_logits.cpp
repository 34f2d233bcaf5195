// mask_logits: a thread takes a token, so that neighbours write neighbours; a warp shares a word.
#include "mask_logits.h"

#include "_grid.h"

__simt_vf__ __launch_bounds__(kThreads) inline void mask_tokens(Gm<float> logits, Gm<int32_t> bits,
                                                                int32_t rows, int32_t words,
                                                                int32_t vocab, int64_t stride) {
  const int32_t wide = words * 32, step = item_step();
  // Items go over rows of whole words, so that 32 neighbours lie in one word.
  int32_t token = first_item(), row = 0;
  while (true) {
    row += token / wide;
    token %= wide;
    if (row >= rows) break;
    const uint32_t word = uint32_t(int32_t(bits[int64_t(row) * words + token / 32]));
    if (token < vocab && ((word >> (token % 32)) & 1u) == 0)
      logits[row * stride + token] = __int_as_float(int32_t(0xFF800000));
    token += step;
  }
}

__global__ __vector__ void mask_kernel(Gm<float> logits, Gm<int32_t> bits, int32_t rows,
                                       int32_t words, int32_t vocab, int64_t stride) {
  asc_vf_call<mask_tokens>(dim3(kThreads), logits, bits, rows, words, vocab, stride);
}

int32_t tandem_ascend_mask_logits(const tandem_ascend_device *device, void *stream, float *logits,
                                  const int32_t *bits, int64_t rows, int64_t vocab,
                                  int64_t stride) {
  if (rows < 0 || vocab <= 0 || stride < vocab) return TANDEM_BAD_VALUE;
  const int64_t words = (vocab + 31) / 32;
  if (const int32_t status = check_items(rows); status != TANDEM_OK || rows == 0) return status;
  if (const int32_t status = check_items(words * 32); status != TANDEM_OK) return status;
  return TANDEM_LAUNCH(mask_kernel, grid_blocks(device, rows * words * 32), stream,
                       gm_cast<float>(logits), gm_cast<int32_t>(bits), int32_t(rows),
                       int32_t(words), int32_t(vocab), stride);
}

// attn_block: attention of turned queries, turned back and quantised; see attention.h.
//
//   q         bf16 [T, H, D]               D a multiple of 32
//   cos_sin   f32 [T, rd]                  cosines of the rd / 2 angles, then sines
//   window    u8 [E, entry bytes]
//   slots     i32 [T, W]                   negative: absent
//   main      u8 [E2, entry bytes]         NULL where K is 0
//   main_slots  i32 [T, K]                 NULL where K is 0
//   sink      f32 [H]
//   codes     u8 [T, H * D]                out, e4m3
//   scales    u8 [T, H * D / 32]           out
//   scratch   u32 [scratch rows, row words]  row words as attention.h has them
//   alike     not 0 where rows name much the same entries as those before them
//   formats   TANDEM_MXFP8, TANDEM_MXFP4 or TANDEM_NVFP4, of window and main
//
// The same bytes as of rope, sparse_attn, rope and quantize.
#include "attention_sums.h"
#include "codecs.h"

namespace tandem::TANDEM_ISA::ops::attn_block {

constexpr int64_t kGroup = 32;

// Channels of a head turned back and quantised.
TANDEM_INLINE void finish_head(const float *values, int64_t dim, int64_t width,
                               const attention::Attention &a, int64_t t, uint8_t *codes,
                               uint8_t *scales) {
  const Angles angles{a.cos_sin + t * a.turned, a.turned / 2, true};
  const int64_t first = (a.D - a.turned) / 2;
  for (int64_t k = 0; k < width; k += kGroup) {
    uint16_t rounded[kGroup];
    store(rounded, load(values + k));
    store(rounded + kLanes, load(values + k + kLanes));
    store_words(rounded,
                turn_words(load_words(rounded, kLanes), (dim + k) / 2 - first, kLanes, angles),
                kLanes);
    encode_mxfp8(rounded, kGroup, codes + k, scales + k / kGroup);
  }
}

int32_t run(const uint16_t *q, const float *cos_sin, const uint8_t *window, const int32_t *slots,
            const uint8_t *main, const int32_t *main_slots, const float *sink, uint8_t *codes,
            uint8_t *scales, uint32_t *scratch, int64_t T, int64_t H, int64_t D, int64_t rd,
            int64_t W, int64_t K, int64_t window_entries, int64_t main_entries,
            int64_t window_format, int64_t main_format, int64_t scratch_rows, int64_t row_words,
            int64_t alike, double scale) {
  const attention::Attention call{q,
                                  cos_sin,
                                  {window, slots, W, window_entries, window_format},
                                  {main, main_slots, K, main_entries, main_format},
                                  sink,
                                  static_cast<float>(scale),
                                  T,
                                  H,
                                  D,
                                  rd,
                                  scratch,
                                  scratch_rows,
                                  alike != 0};
  if (const int32_t status = call.check(row_words)) return status;
  if (D % kGroup) return TANDEM_BAD_SHAPE;
  if (T && (!codes || !scales)) return TANDEM_NULL_POINTER;
  attention::attend(call, [&](int64_t t, const attention::OutputBlock &block) {
    for (int64_t h = 0; h < block.heads; ++h) {
      const int64_t place = (t * H + block.head + h) * D + block.dim;
      finish_head(block.values + h * attention::kBlockDim, block.dim, block.width, call, t,
                  codes + place, scales + place / kGroup);
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::attn_block

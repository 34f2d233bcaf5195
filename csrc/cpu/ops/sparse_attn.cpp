// sparse_attn: attention of rows over the entries that their slots name; see attention.h.
//
//   q         bf16 [T, H, D]               D a multiple of 16 and whole groups
//   window    u8 [E, entry bytes]
//   slots     i32 [T, W]                   negative: absent
//   main      u8 [E2, entry bytes]         NULL where K is 0
//   main_slots  i32 [T, K]                 NULL where K is 0
//   sink      f32 [H]
//   out       bf16 [T, H, D]               out
//   scratch   u32 [scratch rows, row words]  row words as attention.h has them
//   alike     not 0 where rows name much the same entries as those before them
//   formats   TANDEM_MXFP8, TANDEM_MXFP4 or TANDEM_NVFP4, of window and main
#include "attention_sums.h"

namespace tandem::TANDEM_ISA::ops::sparse_attn {

int32_t run(const uint16_t *q, const uint8_t *window, const int32_t *slots, const uint8_t *main,
            const int32_t *main_slots, const float *sink, uint16_t *out, uint32_t *scratch,
            int64_t T, int64_t H, int64_t D, int64_t W, int64_t K, int64_t window_entries,
            int64_t main_entries, int64_t window_format, int64_t main_format, int64_t scratch_rows,
            int64_t row_words, int64_t alike, double scale) {
  const attention::Attention call{q,
                                  nullptr,
                                  {window, slots, W, window_entries, window_format},
                                  {main, main_slots, K, main_entries, main_format},
                                  sink,
                                  static_cast<float>(scale),
                                  T,
                                  H,
                                  D,
                                  0,
                                  scratch,
                                  scratch_rows,
                                  alike != 0};
  if (const int32_t status = call.check(row_words)) return status;
  if (T && !out) return TANDEM_NULL_POINTER;
  attention::attend(call, [&](int64_t t, const attention::OutputBlock &block) {
    for (int64_t h = 0; h < block.heads; ++h) {
      uint16_t *head = out + (t * H + block.head + h) * D + block.dim;
      for (int64_t k = 0; k < block.width; k += kRegister) {
        const Register values = load_register(block.values + h * attention::kBlockDim + k);
        // Processors differ in the sign of the NaN that they make.
        const RegisterU32 nan = RegisterU32{} + kNaN;
        store_halves(head + k, narrow_register(values == values ? values : (Register)nan));
      }
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::sparse_attn

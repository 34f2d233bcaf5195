// aux.draft_commit: keeps one draft of each request for the step that judges it.
//
//   slots       i32 [n]                 distinct where not negative; negative: scratch, the last
//   token       i32 [n]                 -1: none
//   weight      i32 [n, V]              the token was drawn by
//   confidence  f32 [n]                 that it is taken if all before it are
//   drafts      i32 [R + 1, B]          in place
//   proposal    i32 [(R + 1) * B, V]    in place
//   rates       f32 [R + 1, B]          in place, the rate at which the draft is taken
//   column      place of the draft in its block
#include "rows.h"
#include "tandem.h"

namespace tandem::TANDEM_ISA::ops::aux_draft_commit {

int32_t run(const int32_t *slots, const int32_t *token, const int32_t *weight,
            const float *confidence, int32_t *drafts, int32_t *proposal, float *rates, int64_t n,
            int64_t V, int64_t entries, int64_t B, int64_t column) {
  if (n < 0 || V < 0 || entries < 1 || B < 1) return TANDEM_BAD_SHAPE;
  if (column < 0 || column >= B) return TANDEM_BAD_VALUE;
  if (n && (!slots || !token || !confidence || !drafts || !rates || (V && (!weight || !proposal))))
    return TANDEM_NULL_POINTER;
  for (int64_t i = 0; i < n; ++i)
    if (slots[i] >= entries) return TANDEM_BAD_INDEX;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = (slots[i] < 0 ? entries - 1 : slots[i]) * B + column;
    drafts[at] = token[i];
    rates[at] = column ? confidence[i] * rates[at - 1] : confidence[i];
  }
  const int64_t scratch = last_negative(slots, n), bytes = V * 4;
  each_piece(n, bytes, [=](int64_t i, int64_t from, int64_t count) {
    if (slots[i] < 0 && i != scratch) return;
    const int64_t row = slots[i] < 0 ? entries * B - 1 : slots[i] * B + column;
    std::memcpy(reinterpret_cast<uint8_t *>(proposal) + row * bytes + from,
                reinterpret_cast<const uint8_t *>(weight) + i * bytes + from,
                static_cast<size_t>(count));
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::aux_draft_commit

// aux.accept: how much of each request's drafts was taken, and where the request goes on.
//
//   token       i32 [N]        of the rows, as accepted: what spec_verify gives
//   accepted    i32 [N]
//   first       i32 [n]        first row of a request
//   count       i32 [n]        its number of rows, 0: padding; all but the last judge a draft
//   base        i32 [n]        position of the first
//   slots       i32 [n]        negative: scratch, the last entry
//   last_token  i32 [R + 1]    in place, the last token emitted
//   length      i32 [R + 1]    in place, its position
//   emitted     i32 [n]        out, 1 + the leading rows that accepted
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::aux_accept {

int32_t run(const int32_t *token, const int32_t *accepted, const int32_t *first,
            const int32_t *count, const int32_t *base, const int32_t *slots, int32_t *last_token,
            int32_t *length, int32_t *emitted, int64_t N, int64_t n, int64_t entries) {
  if (N < 0 || n < 0 || entries < 1) return TANDEM_BAD_SHAPE;
  if (n && (!token || !accepted || !first || !count || !base || !slots || !last_token || !length ||
            !emitted))
    return TANDEM_NULL_POINTER;
  for (int64_t i = 0; i < n; ++i) {
    if (count[i] <= 0) continue;
    if (first[i] < 0 || int64_t{first[i]} + count[i] > N || slots[i] >= entries)
      return TANDEM_BAD_INDEX;
  }
  for (int64_t i = 0; i < n; ++i) {
    const bool used = count[i] > 0;
    const int64_t slot = used && slots[i] >= 0 ? slots[i] : entries - 1;
    int64_t last = 0;
    if (used)
      for (last = first[i]; last < int64_t{first[i]} + count[i] - 1 && accepted[last];) ++last;
    emitted[i] = used ? static_cast<int32_t>(last - first[i] + 1) : 0;
    if (N) last_token[slot] = token[last];
    length[slot] = base[i] + emitted[i];
  }
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::aux_accept

// aux.commit: hands drawn tokens to the next step.
//
//   tokens      i32 [N]
//   slots       i32 [N]        negative: the last entry, which is scratch
//   positions   i32 [N]        of the rows drawn from
//   last_token  i32 [R + 1]    in place
//   length      i32 [R + 1]    in place, position + 1
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::aux_commit {

int32_t run(const int32_t *tokens, const int32_t *slots, const int32_t *positions,
            int32_t *last_token, int32_t *length, int64_t N, int64_t entries) {
  if (N < 0 || entries < 1) return TANDEM_BAD_SHAPE;
  if (N && (!tokens || !slots || !positions || !last_token || !length)) return TANDEM_NULL_POINTER;
  for (int64_t i = 0; i < N; ++i)
    if (slots[i] >= entries) return TANDEM_BAD_INDEX;
  for (int64_t i = 0; i < N; ++i) {
    const int64_t slot = slots[i] < 0 ? entries - 1 : slots[i];
    last_token[slot] = tokens[i];
    length[slot] = positions[i] + 1;
  }
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::aux_commit

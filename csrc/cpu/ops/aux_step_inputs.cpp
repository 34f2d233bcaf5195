// aux.step_inputs: token ids, positions and slots of a step, from the host or from the step before.
//
//   host_ids        i32 [T]
//   host_positions  i32 [T]           offsets to length where from_device
//   from_device     i32 [T]           0: host; 1: last_token; 1 + j: draft j, counted from 1
//   host_slot       i32 [T]           negative: padding
//   last_token      i32 [R + 1]
//   length          i32 [R + 1]
//   limit           i32 [R + 1]
//   drafts          i32 [R + 1, B]    NULL: none
//   ids             i32 [T]           out, 0 of padding
//   positions       i32 [T]           out, 0 of padding
//   slot            i32 [T]           out, -1 of padding
//
// A row without a token, or past its limit, becomes padding.
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::aux_step_inputs {

int32_t run(const int32_t *host_ids, const int32_t *host_positions, const int32_t *from_device,
            const int32_t *host_slot, const int32_t *last_token, const int32_t *length,
            const int32_t *limit, const int32_t *drafts, int32_t *ids, int32_t *positions,
            int32_t *slot, int64_t T, int64_t entries, int64_t B) {
  if (T < 0 || entries < 1 || B < 0) return TANDEM_BAD_SHAPE;
  if (T && (!host_ids || !host_positions || !from_device || !host_slot || !last_token || !length ||
            !limit || !ids || !positions || !slot))
    return TANDEM_NULL_POINTER;
  for (int64_t t = 0; t < T; ++t) {
    if (host_slot[t] >= entries) return TANDEM_BAD_INDEX;
    if (drafts && host_slot[t] >= 0 && from_device[t] - 1 > B) return TANDEM_BAD_INDEX;
  }
  for (int64_t t = 0; t < T; ++t) {
    const int64_t own = host_slot[t];
    int32_t id = host_ids[t], position = host_positions[t];
    if (own >= 0 && from_device[t]) {
      const bool draft = drafts && from_device[t] > 1;
      id = draft ? drafts[own * B + from_device[t] - 2] : last_token[own];
      position = static_cast<int32_t>(static_cast<uint32_t>(length[own]) +
                                      static_cast<uint32_t>(position));
    }
    const bool alive = own >= 0 && id >= 0 && position < limit[own];
    ids[t] = alive ? id : 0;
    positions[t] = alive ? position : 0;
    slot[t] = alive ? static_cast<int32_t>(own) : -1;
  }
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::aux_step_inputs

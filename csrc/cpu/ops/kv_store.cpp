// kv_store: rows to entries of a cache.
//
//   x        bf16 [T, D]                 D whole groups
//   cache    u8 [E, entry bytes]         written at the slots only
//   slots    i32 [T]                     distinct where not negative; a negative one: not written
//   format   TANDEM_MXFP8, TANDEM_MXFP4 or TANDEM_NVFP4
#include "entries.h"
#include "parallel.h"

namespace tandem::TANDEM_ISA::ops::kv_store {

int32_t run(const uint16_t *x, uint8_t *cache, const int32_t *slots, int64_t T, int64_t D,
            int64_t E, int64_t format) {
  const int64_t group = group_of(format);
  if (!group) return TANDEM_BAD_VALUE;
  if (T < 0 || D < group || D % group || E < 0) return TANDEM_BAD_SHAPE;
  if (T && (!x || !cache || !slots)) return TANDEM_NULL_POINTER;
  if (!slots_inside(slots, T, E)) return TANDEM_BAD_INDEX;
  const int64_t size = entry_bytes(format, D);
  parallel_for(T, 4 * D, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (slots[t] < 0) continue;
      uint8_t *entry = cache + slots[t] * size;
      encode_row(format, x + t * D, D, entry, entry + code_bytes(format, D));
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::kv_store

// kv_load: entries of a cache as rows.
//
//   cache    u8 [E, entry bytes]
//   slots    i32 [T]                     a negative one gives zeros
//   x        bf16 [T, D]                 out; D whole groups
//   format   TANDEM_MXFP8, TANDEM_MXFP4 or TANDEM_NVFP4
#include "entries.h"
#include "parallel.h"

namespace tandem::TANDEM_ISA::ops::kv_load {

int32_t run(const uint8_t *cache, const int32_t *slots, uint16_t *x, int64_t T, int64_t D,
            int64_t E, int64_t format) {
  const int64_t group = group_of(format);
  if (!group) return TANDEM_BAD_VALUE;
  if (T < 0 || D < group || D % group || E < 0) return TANDEM_BAD_SHAPE;
  if (T && (!x || !cache || !slots)) return TANDEM_NULL_POINTER;
  if (!slots_inside(slots, T, E)) return TANDEM_BAD_INDEX;
  const int64_t size = entry_bytes(format, D);
  parallel_for(T, 2 * D, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      uint16_t *row = x + t * D;
      const uint8_t *entry = cache + (slots[t] < 0 ? 0 : slots[t] * size);
      if (slots[t] < 0)
        std::memset(row, 0, static_cast<size_t>(D) * sizeof *row);
      else
        decode_entries<1>(format, &entry, D, [row](int64_t k, const Register *values) {
          store_halves(row + k, narrow_register(*values));
        });
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::kv_load

// kv_write: rows normalised, and stored as entries of a cache after their last channels are turned.
//
//   x        bf16 [T, D]                 D whole groups
//   weight   f32 [D]
//   cos_sin  f32 [T, rd]                 cosines of the rd / 2 angles, then sines
//   normed   bf16 [T, D]                 out, before they are turned
//   cache    u8 [E, entry bytes]         written at the slots only
//   slots    i32 [T]                     distinct where not negative; a negative one: not written
//   format   TANDEM_MXFP8, TANDEM_MXFP4 or TANDEM_NVFP4
//
// The same bytes as of rms_norm, rope and kv_store.
#include <cmath>

#include "entries.h"
#include "parallel.h"
#include "rotate.h"

namespace tandem::TANDEM_ISA::ops::kv_write {

constexpr int64_t kStep = 32;  // channels: two registers of pairs, and whole groups of every format

TANDEM_INLINE void normalise(const uint16_t *row, const float *weight, uint16_t *y, int64_t D,
                             double eps) {
  const float sum = row_sum(row, D, [](const Register &v) { return v * v; });
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(D) + static_cast<float>(eps));
  map_row(row, y, D,
          [&](const Register &v, int64_t k) { return v * factor * load_register(weight + k); });
}

TANDEM_INLINE void write_entry(int64_t format, const uint16_t *row, int64_t D, const Angles &angles,
                               uint8_t *entry) {
  uint8_t *scales = entry + code_bytes(format, D);
  const int64_t first = D / 2 - angles.pairs, group = group_of(format);
  for (int64_t k = 0; k < D; k += kStep) {
    const int64_t channels = D - k < kStep ? D - k : kStep;
    uint16_t turned[kStep];
    store_words(turned,
                turn_words(load_words(row + k, channels / 2), k / 2 - first, channels / 2, angles),
                channels / 2);
    encode_row(format, turned, channels, entry + code_bytes(format, k), scales + k / group);
  }
}

int32_t run(const uint16_t *x, const float *weight, const float *cos_sin, uint16_t *normed,
            uint8_t *cache, const int32_t *slots, int64_t T, int64_t D, int64_t rd, int64_t E,
            int64_t format, double eps) {
  const int64_t group = group_of(format);
  if (!group || !(eps >= 0.0)) return TANDEM_BAD_VALUE;
  if (T < 0 || D < group || D % group || rd < 0 || rd > D || rd % 2 || E < 0)
    return TANDEM_BAD_SHAPE;
  if (T && (!x || !weight || (rd && !cos_sin) || !normed || !cache || !slots))
    return TANDEM_NULL_POINTER;
  if (!slots_inside(slots, T, E)) return TANDEM_BAD_INDEX;
  const int64_t size = entry_bytes(format, D);
  parallel_for(T, 8 * D, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      uint16_t *row = normed + t * D;
      normalise(x + t * D, weight, row, D, eps);
      if (slots[t] >= 0)
        write_entry(format, row, D, Angles{cos_sin + t * rd, rd / 2, false},
                    cache + slots[t] * size);
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::kv_write

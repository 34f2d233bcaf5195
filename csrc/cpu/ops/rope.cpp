// rope: the last rd channels of each head turned in pairs.
//
//   x        bf16 [T, H, D]
//   cos_sin  f32 [T, rd]        cosines of the rd / 2 angles, then sines
//   y        bf16 [T, H, D]     out
//   inverse  0 or 1: turns back
#include "parallel.h"
#include "rotate.h"

namespace tandem::TANDEM_ISA::ops::rope {

int32_t run(const uint16_t *x, const float *cos_sin, uint16_t *y, int64_t T, int64_t H, int64_t D,
            int64_t rd, int64_t inverse) {
  if (T < 0 || H < 0 || D < 0 || rd < 0 || rd > D || rd % 2) return TANDEM_BAD_SHAPE;
  if (T && H && D && (!x || !y || (rd && !cos_sin))) return TANDEM_NULL_POINTER;
  const int64_t kept = D - rd, pairs = rd / 2;
  parallel_for(T * H, 2 * D, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint16_t *from = x + i * D;
      uint16_t *to = y + i * D;
      const Angles angles{cos_sin + i / H * rd, pairs, inverse != 0};
      std::memcpy(to, from, static_cast<size_t>(kept) * sizeof *to);
      for (int64_t k = 0; k < pairs; k += kLanes) {
        const VecU32 words = load_words(from + kept + 2 * k, pairs - k);
        store_words(to + kept + 2 * k, turn_words(words, k, pairs - k, angles), pairs - k);
      }
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::rope

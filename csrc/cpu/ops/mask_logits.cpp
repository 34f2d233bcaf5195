// mask_logits: -inf where a bit is 0, in place.
//
//   logits  f32 [T, V]               in place, rows `stride` apart
//   bits    i32 [T, ceil(V / 32)]    bit v % 32 of word v / 32 is that of token v
#include "parallel.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::mask_logits {

// Up to 32 tokens of a word.
TANDEM_INLINE void mask_word(float *x, uint32_t word, int64_t count) {
  if (word == 0xffffffffu) return;
  constexpr uint32_t kBanned = 0xff800000u;  // -inf
  uint32_t held[32];
  std::memcpy(held, x, static_cast<size_t>(count) * sizeof(float));
  for (int i = 0; i < 32; ++i) held[i] = (word >> i) & 1u ? held[i] : kBanned;
  std::memcpy(x, held, static_cast<size_t>(count) * sizeof(float));
}

int32_t run(float *logits, const int32_t *bits, int64_t T, int64_t V, int64_t stride) {
  if (T < 0 || V < 0 || stride < V) return TANDEM_BAD_SHAPE;
  if (T && V && (!logits || !bits)) return TANDEM_NULL_POINTER;
  const int64_t words = (V + 31) / 32;
  parallel_for(T * words, 128, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / words, v = i % words * 32;
      const uint32_t word = static_cast<uint32_t>(bits[i]);
      float *x = logits + t * stride + v;
      if (V - v >= 32)
        mask_word(x, word, 32);
      else
        mask_word(x, word, V - v);
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::mask_logits

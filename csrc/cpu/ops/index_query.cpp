// index_query: the last `turned` channels of each head rotated in pairs, rounded to bf16, and all
// of it quantised to mxfp4.
//
//   x        bf16 [T, heads * dim]      dim a multiple of 32
//   cos_sin  f32 [T, turned]            cos of the turned / 2 angles, then sin; turned even
//   codes    u8 [T, heads * dim / 2]    out
//   scales   u8 [T, heads * dim / 32]   out
#include "codecs.h"
#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::index_query {

constexpr int64_t kGroup = 32, kStep = 8;  // channels of a group, groups at a time

// Turns the pair of channels `i` and i + 1 of a group.
TANDEM_INLINE void rotate_pair(const uint16_t *x, int64_t i, float cos, float sin, uint16_t *y) {
  const float even = widen(x[i]), odd = widen(x[i + 1]);
  y[i] = narrow(even * cos - odd * sin);
  y[i + 1] = narrow(even * sin + odd * cos);
}

// All sixteen pairs of a group.
TANDEM_INLINE void rotate_all(const uint16_t *x, const Vec &cos, const Vec &sin, uint16_t *y) {
  VecU32 pairs;
  std::memcpy(&pairs, x, sizeof pairs);
  const Vec even = (Vec)(pairs << 16), odd = (Vec)(pairs & 0xffff0000u);
  uint16_t first[kLanes], second[kLanes];
  store(first, even * cos - odd * sin);
  store(second, even * sin + odd * cos);
  const VecU32 turned = ((VecU32)load(first) >> 16) | (VecU32)load(second);
  std::memcpy(y, &turned, sizeof turned);
}

// A group of a head; `pair` is the number of its first pair among those that turn, negative where
// it does not turn.
void rotate(const uint16_t *x, const float *cos_sin, int64_t pair, int64_t half, uint16_t *y) {
  if (pair >= 0) {
    rotate_all(x, load(cos_sin + pair), load(cos_sin + half + pair), y);
    return;
  }
  std::memcpy(y, x, kGroup * sizeof(uint16_t));
  for (int64_t i = -2 * pair; i < kGroup; i += 2)
    rotate_pair(x, i, cos_sin[pair + i / 2], cos_sin[half + pair + i / 2], y);
}

int32_t run(const uint16_t *x, const float *cos_sin, uint8_t *codes, uint8_t *scales, int64_t T,
            int64_t heads, int64_t dim, int64_t turned) {
  if (T < 0 || heads < 1 || dim < kGroup || dim % kGroup || turned < 0 || turned % 2 ||
      turned > dim)
    return TANDEM_BAD_SHAPE;
  if (T && (!x || !cos_sin || !codes || !scales)) return TANDEM_NULL_POINTER;
  const int64_t groups = dim / kGroup, kept = dim - turned;
  parallel_for(T * heads, 8 * dim, [=](int64_t begin, int64_t end) {
    for (int64_t each = begin; each < end; ++each) {
      const float *angles = cos_sin + each / heads * turned;
      for (int64_t first = 0; first < groups; first += kStep) {
        const int64_t count = groups - first < kStep ? groups - first : kStep;
        const int64_t at = each * groups + first;
        uint16_t y[kStep * kGroup];
        for (int64_t g = 0; g < count; ++g)
          rotate(x + (at + g) * kGroup, angles, ((first + g) * kGroup - kept) / 2, turned / 2,
                 y + g * kGroup);
        encode_mxfp4(y, count * kGroup, codes + at * kGroup / 2, scales + at);
      }
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::index_query

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

constexpr int64_t kGroup = 32;

// A group of a head from its channel `first` on.
void rotate(const uint16_t *x, const float *cos_sin, int64_t first, int64_t kept, int64_t half,
            uint16_t *y) {
  for (int64_t i = 0; i < kGroup; i += 2) {
    y[i] = x[i];
    y[i + 1] = x[i + 1];
    if (first + i < kept) continue;
    const int64_t pair = (first + i - kept) / 2;
    const float even = widen(x[i]), odd = widen(x[i + 1]);
    const float cos = cos_sin[pair], sin = cos_sin[half + pair];
    y[i] = narrow(even * cos - odd * sin);
    y[i + 1] = narrow(even * sin + odd * cos);
  }
}

int32_t run(const uint16_t *x, const float *cos_sin, uint8_t *codes, uint8_t *scales, int64_t T,
            int64_t heads, int64_t dim, int64_t turned) {
  if (T < 0 || heads < 1 || dim < kGroup || dim % kGroup || turned < 0 || turned % 2 ||
      turned > dim)
    return TANDEM_BAD_SHAPE;
  if (T && (!x || !cos_sin || !codes || !scales)) return TANDEM_NULL_POINTER;
  parallel_for(T * heads, 8 * dim, [=](int64_t begin, int64_t end) {
    for (int64_t each = begin; each < end; ++each) {
      const int64_t t = each / heads, groups = dim / kGroup;
      for (int64_t g = 0; g < groups; ++g) {
        uint16_t y[kGroup];
        rotate(x + each * dim + g * kGroup, cos_sin + t * turned, g * kGroup, dim - turned,
               turned / 2, y);
        encode_mxfp4(y, kGroup, codes + (each * groups + g) * kGroup / 2,
                     scales + each * groups + g);
      }
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::index_query

// rms_norm: y = x / sqrt(mean(x^2) + eps) * weight, rounded once, and y quantised.
//
//   x       bf16 [T, N]
//   weight  f32 [N]            NULL: none
//   y       bf16 [T, N]        out
//   codes   u8 [T, N]          out, e4m3 of the rounded y; NULL: not quantised. N a multiple of 32
//   then scales  u8 [T, N / 32]     out, with codes
//
// The sum runs in 16 lanes, see row_sum.
#include <cmath>

#include "codecs.h"
#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::rms_norm {

int32_t run(const uint16_t *x, const float *weight, uint16_t *y, uint8_t *codes, uint8_t *scales,
            int64_t T, int64_t N, double eps) {
  if (T < 0 || N < 1 || (codes && N % 32)) return TANDEM_BAD_SHAPE;
  if (!(eps >= 0.0)) return TANDEM_BAD_VALUE;
  if (T && (!x || !y || !codes != !scales)) return TANDEM_NULL_POINTER;
  parallel_for(T, (codes ? 6 : 2) * N, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const uint16_t *row = x + t * N;
      const float sum = row_sum(row, N, [](const Vec &v) { return v * v; });
      const float factor = 1.0f / std::sqrt(sum / static_cast<float>(N) + static_cast<float>(eps));
      map_row(row, y + t * N, N, [&](const Vec &v, int64_t k) {
        if (!weight) return v * factor;
        return v * factor * (N - k < kLanes ? load_part(weight + k, N - k) : load(weight + k));
      });
      if (codes) encode_mxfp8(y + t * N, N, codes + t * N, scales + t * (N / 32));
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::rms_norm

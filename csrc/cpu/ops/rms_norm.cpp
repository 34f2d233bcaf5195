// rms_norm: y = x / sqrt(mean(x^2) + eps) * weight, rounded once, and y quantised.
//
//   x       bf16 [T, N]
//   weight  f32 [N]            NULL: none
//   y       bf16 [T, N]        out
//   codes   u8 [T, N]          out, e4m3 of the rounded y; NULL: not quantised. N a multiple of 32
//   then scales  u8 [T, N / 32]     out, with codes
//
// The order of the sum stands in norm.h.
#include "norm.h"
#include "parallel.h"

namespace tandem::TANDEM_ISA::ops::rms_norm {

int32_t run(const uint16_t *x, const float *weight, uint16_t *y, uint8_t *codes, uint8_t *scales,
            int64_t T, int64_t N, double eps) {
  if (T < 0 || N < 1 || (codes && N % 32)) return TANDEM_BAD_SHAPE;
  if (!(eps >= 0.0)) return TANDEM_BAD_VALUE;
  if (T && (!x || !y || !codes != !scales)) return TANDEM_NULL_POINTER;
  parallel_for(T, (codes ? 6 : 2) * N, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      norm_row(x + t * N, weight, y + t * N, codes ? codes + t * N : nullptr,
               codes ? scales + t * (N / 32) : nullptr, N, static_cast<float>(eps));
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::rms_norm

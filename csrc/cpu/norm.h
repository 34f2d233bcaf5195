// Root-mean-square normalisation of a row.
#pragma once

#include <cmath>
#include <cstdint>

#include "codecs.h"
#include "vec.h"

namespace tandem::TANDEM_ISA {

TANDEM_INLINE float inverse_root(float sum_of_squares, int64_t n, float eps) {
  return 1.0f / std::sqrt(sum_of_squares / static_cast<float>(n) + eps);
}

// y = x / sqrt(mean(x^2) + eps) * weight, rounded once (y may be x; weight NULL: none), and, where
// codes is not NULL, the codes and scales of the rounded y. The sum runs in 16 lanes, see row_sum.
TANDEM_INLINE void norm_row(const uint16_t *x, const float *weight, uint16_t *y, uint8_t *codes,
                            uint8_t *scales, int64_t n, float eps) {
  const float factor = inverse_root(row_sum(x, n, [](const Register &v) { return v * v; }), n, eps);
  if (weight) {
    map_row(x, y, n, [=](const Register &v, int64_t k) {
      const bool whole = n - k >= kRegister;
      return v * factor *
             (whole ? load_register(weight + k) : load_register_part(weight + k, n - k));
    });
  } else {
    map_row(x, y, n, [=](const Register &v, int64_t) { return v * factor; });
  }
  if (codes) encode_mxfp8(y, n, codes, scales);
}

}  // namespace tandem::TANDEM_ISA

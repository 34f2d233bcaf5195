// linear_f32: y = x times a f32 weight, transposed.
//
//   x         bf16 or mxfp8 codes [T, K]
//   x_scales  ue8m0 [T, K / 32]       NULL for bf16
//   weight    f32 [N, K]
//   y         bf16 or f32 [T, N]      out
//   x_format, y_format                of x and y
//
// A sum runs in 16 lanes, lane l adding k = l, l + 16, ... in order, then tree_sum.
#include "codecs.h"
#include "parallel.h"

namespace tandem::TANDEM_ISA::ops::linear_f32 {

TANDEM_INLINE Vec values(int64_t format, const void *x, const uint8_t *scales, int64_t k,
                         int64_t count) {
  if (format == TANDEM_BF16) {
    const uint16_t *row = static_cast<const uint16_t *>(x) + k;
    return count < kLanes ? load_part(row, count) : load(row);
  }
  float lanes[kLanes];
  const uint8_t *codes = static_cast<const uint8_t *>(x) + k;
  for (int l = 0; l < kLanes; ++l) lanes[l] = decode_e4m3(codes[l]) * decode_ue8m0(scales[k / 32]);
  return load(lanes);
}

int32_t run(const void *x, const uint8_t *x_scales, const float *weight, void *y, int64_t T,
            int64_t K, int64_t N, int64_t x_format, int64_t y_format) {
  if (y_format != TANDEM_BF16 && y_format != TANDEM_F32) return TANDEM_BAD_VALUE;
  if (x_format != TANDEM_BF16 && x_format != TANDEM_MXFP8) return TANDEM_BAD_VALUE;
  if (T < 0 || K < 1 || N < 1 || (x_format == TANDEM_MXFP8 && K % 32)) return TANDEM_BAD_SHAPE;
  if (T == 0) return TANDEM_OK;
  if (!x || !weight || !y || (x_format == TANDEM_MXFP8 && !x_scales)) return TANDEM_NULL_POINTER;
  parallel_for(N, T * K, [=](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float *w = weight + n * K;
      for (int64_t t = 0; t < T; ++t) {
        const uint8_t *row =
            static_cast<const uint8_t *>(x) + t * K * (x_format == TANDEM_BF16 ? 2 : 1);
        const uint8_t *scales = x_scales ? x_scales + t * (K / 32) : nullptr;
        Sum sum;
        for (int64_t k = 0; k < K; k += kLanes) {
          const int64_t count = K - k;
          sum += values(x_format, row, scales, k, count) *
                 (count < kLanes ? load_part(w + k, count) : load(w + k));
        }
        if (y_format == TANDEM_F32)
          static_cast<float *>(y)[t * N + n] = tree_sum(sum.value());
        else
          static_cast<uint16_t *>(y)[t * N + n] = narrow(tree_sum(sum.value()));
      }
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::linear_f32

// linear: y = x times a weight, transposed; see products.h for the order of the sums.
//
//   x         bf16 or mxfp8 codes [T, K]
//   x_scales  ue8m0 [T, K / 32]       NULL for bf16
//   codes     weight [N, K]: bf16, fp8_block32 or mxfp4 codes, as stored
//   scales    ue8m0: [ceil(N / 32), ceil(K / 32)] of fp8_block32, [N, K / 32] of mxfp4, NULL of
//   bf16 y         bf16 or f32 [T, N]      out room      memory of T * (K in whole 128s + 32) * 4
//   bytes, for the call x_format, format, y_format        of x, the weight and y
#include "products.h"

namespace tandem::TANDEM_ISA::ops::linear {

int32_t run(const void *x, const uint8_t *x_scales, const void *codes, const uint8_t *scales,
            void *y, uint8_t *room, int64_t T, int64_t K, int64_t N, int64_t x_format,
            int64_t format, int64_t y_format) {
  const Shape shape{format, K, N, y_format == TANDEM_F32};
  if (y_format != TANDEM_BF16 && y_format != TANDEM_F32) return TANDEM_BAD_VALUE;
  if (T < 0) return TANDEM_BAD_SHAPE;
  if (T == 0) return TANDEM_OK;
  if (!x || !codes || !y || !room || (format != TANDEM_BF16 && !scales)) return TANDEM_NULL_POINTER;
  if (const int32_t status = check_shape(shape, x_format, x_scales)) return status;
  Item *rows = reinterpret_cast<Item *>(room);
  arrange_rows(shape, x_format, x, x_scales, T, K, 0, rows);
  const Product product{
      rows, T, static_cast<const uint8_t *>(codes), scales, static_cast<uint8_t *>(y), N};
  run_products(shape, 1, [&](int64_t) { return product; });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::linear

// group_linear: part g of a row times weight g; see products.h for the order of the sums.
//
//   x         bf16 or mxfp8 codes [T, G * K]
//   x_scales  ue8m0 [T, G * K / 32]   NULL for bf16
//   codes     weights [G, N, K]: bf16, fp8_block32 or mxfp4 codes, as stored
//   scales    ue8m0, as of linear for every weight
//   y         bf16 [T, G * N]         out
//   room      memory of G * T * (K in whole 128s + 32) * 4 bytes, for the call
//   x_format, format                  of x and the weights
#include "products.h"

namespace tandem::TANDEM_ISA::ops::group_linear {

int32_t run(const void *x, const uint8_t *x_scales, const void *codes, const uint8_t *scales,
            uint16_t *y, uint8_t *room, int64_t T, int64_t G, int64_t K, int64_t N,
            int64_t x_format, int64_t format) {
  const Shape shape{format, K, N, false};
  if (T < 0 || G < 1) return TANDEM_BAD_SHAPE;
  if (T == 0) return TANDEM_OK;
  if (!x || !codes || !y || !room || (format != TANDEM_BF16 && !scales)) return TANDEM_NULL_POINTER;
  if (const int32_t status = check_shape(shape, x_format, x_scales)) return status;
  Item *rows = reinterpret_cast<Item *>(room);
  for (int64_t g = 0; g < G; ++g)
    arrange_rows(shape, x_format, x, x_scales, T, G * K, g * K, rows + g * T * shape.stride());
  run_products(shape, G, [&](int64_t g) {
    return Product{rows + g * T * shape.stride(),
                   T,
                   static_cast<const uint8_t *>(codes) + g * N * shape.row_bytes(),
                   scales + g * shape.scale_count(),
                   reinterpret_cast<uint8_t *>(y + g * N),
                   G * N};
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::group_linear

// grouped_linear: each row times the weight of its expert; see products.h for the order of the
// sums.
//
//   x         mxfp8 codes [T, K], sorted by expert
//   x_scales  ue8m0 [T, K / 32]
//   codes     weights [E, N, K]: fp8_block32 or mxfp4 codes, as stored
//   scales    ue8m0, as of linear for every weight
//   ends      [E]: expert e has rows ends[e - 1] to ends[e]; an expert without rows is not read
//   y         bf16 [T, N]             out; rows from ends[E - 1] on become zero
//   room      memory of held * (K in whole 128s + 32) * 4 bytes, for the call
//   format    of the weights
//   held      rows that are worked on at a time, at least 1; those of an expert stay together where
//             they fit, because each part reads its weights
#include <algorithm>

#include "products.h"

namespace tandem::TANDEM_ISA::ops::grouped_linear {

// Where rows from `begin` on are cut: behind the last expert that fits, or within one too large.
TANDEM_INLINE int64_t part_end(const int32_t *ends, int64_t E, int64_t begin, int64_t held) {
  int64_t stop = begin;
  for (int64_t e = 0; e < E && ends[e] <= begin + held; ++e)
    if (ends[e] > begin) stop = ends[e];
  return stop > begin ? stop : begin + held;
}

int32_t run(const uint8_t *x, const uint8_t *x_scales, const void *codes, const uint8_t *scales,
            const int32_t *ends, uint16_t *y, uint8_t *room, int64_t T, int64_t E, int64_t K,
            int64_t N, int64_t format, int64_t held) {
  const Shape shape{format, K, N, false};
  if (T < 0 || E < 1 || held < 1) return TANDEM_BAD_SHAPE;
  if (T == 0) return TANDEM_OK;
  if (!x || !codes || !ends || !y || !room || (format != TANDEM_BF16 && !scales))
    return TANDEM_NULL_POINTER;
  if (const int32_t status = check_shape(shape, TANDEM_MXFP8, x_scales)) return status;
  for (int64_t e = 0; e < E; ++e)
    if (ends[e] < (e ? ends[e - 1] : 0) || ends[e] > T) return TANDEM_BAD_INDEX;
  const int64_t used = ends[E - 1];
  Item *rows = reinterpret_cast<Item *>(room);
  for (int64_t begin = 0, stop; begin < used; begin = stop) {
    stop = part_end(ends, E, begin, held);
    arrange_rows(shape, TANDEM_MXFP8, x + begin * K, x_scales + begin * (K / 32), stop - begin, K,
                 0, rows);
    run_products(shape, E, [&](int64_t e) {
      const int64_t first = std::clamp<int64_t>(e ? ends[e - 1] : 0, begin, stop);
      return Product{rows + (first - begin) * shape.stride(),
                     std::clamp<int64_t>(ends[e], begin, stop) - first,
                     static_cast<const uint8_t *>(codes) + e * N * shape.row_bytes(),
                     scales + e * shape.scale_count(),
                     reinterpret_cast<uint8_t *>(y + first * N),
                     N};
    });
  }
  std::memset(y + used * N, 0, static_cast<size_t>((T - used) * N) * sizeof(uint16_t));
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::grouped_linear

// gather_rows: rows of an array by index.
//
//   x      u8 [N, bytes]    rows of any type
//   index  i32 [T]          negative: a row of zeros
//   y      u8 [T, bytes]    out
#include "rows.h"
#include "tandem.h"

namespace tandem::TANDEM_ISA::ops::gather_rows {

int32_t run(const void *x, const int32_t *index, void *y, int64_t N, int64_t T, int64_t bytes) {
  if (N < 0 || T < 0 || bytes < 0) return TANDEM_BAD_SHAPE;
  if (T && bytes && (!index || !y)) return TANDEM_NULL_POINTER;
  for (int64_t t = 0; t < T; ++t)
    if (index[t] >= N) return TANDEM_BAD_INDEX;
  each_piece(T, bytes, [=](int64_t t, int64_t from, int64_t count) {
    uint8_t *to = static_cast<uint8_t *>(y) + t * bytes + from;
    if (index[t] < 0)
      std::memset(to, 0, static_cast<size_t>(count));
    else
      std::memcpy(to, static_cast<const uint8_t *>(x) + index[t] * bytes + from,
                  static_cast<size_t>(count));
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::gather_rows

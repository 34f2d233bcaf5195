// scatter_rows: writes rows of an array by index.
//
//   x       u8 [N, bytes]    in place; its last row is scratch
//   index   i32 [T]          distinct where not negative; negative: the last row
//   values  u8 [T, bytes]    rows of the same type
#include "rows.h"
#include "tandem.h"

namespace tandem::TANDEM_ISA::ops::scatter_rows {

int32_t run(void *x, const int32_t *index, const void *values, int64_t N, int64_t T,
            int64_t bytes) {
  if (N < 0 || T < 0 || bytes < 0 || (T && N < 1)) return TANDEM_BAD_SHAPE;
  if (T && bytes && (!x || !index || !values)) return TANDEM_NULL_POINTER;
  for (int64_t t = 0; t < T; ++t)
    if (index[t] >= N) return TANDEM_BAD_INDEX;
  const int64_t scratch = last_negative(index, T);
  each_piece(T, bytes, [=](int64_t t, int64_t from, int64_t count) {
    if (index[t] < 0 && t != scratch) return;
    const int64_t row = index[t] < 0 ? N - 1 : index[t];
    std::memcpy(static_cast<uint8_t *>(x) + row * bytes + from,
                static_cast<const uint8_t *>(values) + t * bytes + from,
                static_cast<size_t>(count));
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::scatter_rows

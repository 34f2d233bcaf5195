// engram_gather: stored rows of the Engram table, codes and scales as they are.
//
//   rows          i64 [T, n]               all in [first_row, first_row + held)
//   table         u8 [held, dim]           e4m3; mapped from the file
//   table_scales  u8 [held, dim / 32]
//   codes         u8 [T, n * dim]          out
//   scales        u8 [T, n * dim / 32]     out
#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::engram_gather {

// Of a row: every one may be a page that has to be read from the file, so threads wait together.
constexpr int64_t kWork = 1 << 12;

int32_t run(const int64_t *rows, const uint8_t *table, const uint8_t *table_scales, uint8_t *codes,
            uint8_t *scales, int64_t first_row, int64_t T, int64_t n, int64_t held, int64_t dim) {
  if (T < 0 || n < 0 || held < 0 || dim < 32 || dim % 32) return TANDEM_BAD_SHAPE;
  const int64_t count = T * n, groups = dim / 32;
  if (count && (!rows || !table || !table_scales || !codes || !scales)) return TANDEM_NULL_POINTER;
  for (int64_t i = 0; i < count; ++i)
    if (rows[i] < first_row || rows[i] - first_row >= held) return TANDEM_BAD_INDEX;
  parallel_for(count, kWork, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = rows[i] - first_row;
      std::memcpy(codes + i * dim, table + row * dim, static_cast<size_t>(dim));
      std::memcpy(scales + i * groups, table_scales + row * groups, static_cast<size_t>(groups));
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::engram_gather

// engram_gather: threads copy 16 bytes of codes each, then one scale byte each.
#include "engram_gather.h"

#include "_grid.h"

namespace {

constexpr int32_t kGroup = 32;       // codes of a scale
constexpr uint8_t kFillScale = 127;  // one, which fills up the last pair of a row

// Copy the rows asked for, `pieces` words each.
template <class Word>
__simt_callee__ inline void gather_codes(Gm<int64_t> index, Gm<Word> table, Gm<Word> codes,
                                         int64_t first_row, int32_t items, int32_t pieces) {
  for (int32_t item = first_item(); item < items; item += item_step())
    codes[item] = table[(index[item / pieces] - first_row) * pieces + item % pieces];
}

__simt_vf__ __launch_bounds__(kThreads) inline void engram_gather(
    Gm<int64_t> index, Gm<uint8_t> table, Gm<uint8_t> table_scale, Gm<uint8_t> codes,
    Gm<uint8_t> scales, int64_t first_row, int32_t rows, int32_t n, int32_t dim, int32_t aligned) {
  if (aligned != 0)
    gather_codes(index, Gm<uint4>(table), Gm<uint4>(codes), first_row, rows * n * (dim / 16),
                 dim / 16);
  else
    gather_codes(index, table, codes, first_row, rows * n * dim, dim);
  const int32_t held = dim / kGroup, used = n * held, groups = used + used % 2;
  for (int32_t item = first_item(); item < rows * groups; item += item_step()) {
    const int32_t row = item / groups, group = item % groups;
    uint8_t scale = kFillScale;
    if (group < used)
      scale = table_scale[(index[row * n + group / held] - first_row) * held + group % held];
    scales[item] = scale;
  }
}

__global__ __vector__ void engram_gather_kernel(Gm<int64_t> index, Gm<uint8_t> table,
                                                Gm<uint8_t> table_scale, Gm<uint8_t> codes,
                                                Gm<uint8_t> scales, int64_t first_row, int32_t rows,
                                                int32_t n, int32_t dim, int32_t aligned) {
  asc_vf_call<engram_gather>(dim3(kThreads), index, table, table_scale, codes, scales, first_row,
                             rows, n, dim, aligned);
}

}  // namespace

int32_t tandem_ascend_engram_gather(const tandem_ascend_device *device, void *stream,
                                    const int64_t *index, const uint8_t *table,
                                    const uint8_t *table_scale, uint8_t *codes, uint8_t *scales,
                                    int64_t first_row, int64_t rows, int32_t n, int32_t dim) {
  if (n < 0 || dim <= 0 || dim % kGroup != 0) return TANDEM_BAD_VALUE;
  const int64_t bytes = rows * n * dim;
  if (const int32_t status = check_items(bytes); status != TANDEM_OK || bytes == 0) return status;
  const bool aligned = reinterpret_cast<uintptr_t>(table) % sizeof(uint4) == 0 &&
                       reinterpret_cast<uintptr_t>(codes) % sizeof(uint4) == 0;
  return TANDEM_LAUNCH(engram_gather_kernel, grid_blocks(device, bytes / int64_t(sizeof(uint4))),
                       stream, gm_cast<int64_t>(index), gm_cast<uint8_t>(table),
                       gm_cast<uint8_t>(table_scale), gm_cast<uint8_t>(codes),
                       gm_cast<uint8_t>(scales), first_row, int32_t(rows), n, dim, aligned);
}

// engram_hash: a thread takes one hash of a row. Contexts are so short that mixing the same tokens
// anew costs less than passing them on.
#include "engram_hash.h"

#include "_grid.h"

namespace {

__simt_vf__ __launch_bounds__(kThreads) inline void engram_hash(
    Gm<int32_t> context, Gm<int64_t> multipliers, Gm<int64_t> primes, Gm<int64_t> offsets,
    Gm<int64_t> hashed, int32_t items, int32_t n, int32_t heads) {
  const int32_t hashes = (n - 1) * heads;
  for (int32_t item = first_item(); item < items; item += item_step()) {
    const int32_t row = item / hashes, hash = item % hashes;
    int64_t mixed = 0;  // of the token itself and its hash / heads + 1 predecessors
    for (int32_t back = 0; back <= hash / heads + 1; ++back)
      mixed ^= int64_t(int32_t(context[int64_t(row) * n + back])) * int64_t(multipliers[back]);
    hashed[item] = mixed % int64_t(primes[hash]) + int64_t(offsets[hash]);
  }
}

__global__ __vector__ void engram_hash_kernel(Gm<int32_t> context, Gm<int64_t> multipliers,
                                              Gm<int64_t> primes, Gm<int64_t> offsets,
                                              Gm<int64_t> hashed, int32_t items, int32_t n,
                                              int32_t heads) {
  asc_vf_call<engram_hash>(dim3(kThreads), context, multipliers, primes, offsets, hashed, items, n,
                           heads);
}

}  // namespace

int32_t tandem_ascend_engram_hash(const tandem_ascend_device *device, void *stream,
                                  const int32_t *context, const int64_t *multipliers,
                                  const int64_t *primes, const int64_t *offsets, int64_t *hashed,
                                  int64_t rows, int32_t n, int32_t heads) {
  if (n < 1 || heads < 0) return TANDEM_BAD_VALUE;
  const int64_t items = rows * (n - 1) * heads;
  if (const int32_t status = check_items(items); status != TANDEM_OK || items == 0) return status;
  return TANDEM_LAUNCH(engram_hash_kernel, grid_blocks(device, items), stream,
                       gm_cast<int32_t>(context), gm_cast<int64_t>(multipliers),
                       gm_cast<int64_t>(primes), gm_cast<int64_t>(offsets),
                       gm_cast<int64_t>(hashed), int32_t(items), n, heads);
}

// index_scores: scores of the entries that rows see: a block, a cube core with its vector cores,
// takes a tile of rows and a span of entries.
#include "index_scores.h"

#include "_index_score.h"

using namespace tandem;

__global__ __mix__(1, 2) void index_scores_kernel(
    Gm<uint8_t> codes, Gm<uint8_t> scales, Gm<bfloat16_t> weights, Gm<uint8_t> cache,
    Gm<int32_t> table, Gm<int32_t> row_slot, Gm<int32_t> lens, Gm<bfloat16_t> out, uint32_t rows,
    uint32_t heads, uint32_t dim, uint32_t width, uint32_t columns, uint32_t block_entries,
    uint32_t tile_rows, uint32_t span, uint32_t blocks, uint32_t l0_bytes, uint32_t l0c_bytes) {
  score_keys<false>({rows, heads, dim, width, columns, block_entries, tile_rows, span, blocks,
                     l0_bytes, l0c_bytes},
                    {codes, scales, weights, cache, table, row_slot, lens, out});
}

int32_t tandem_ascend_index_scores(const tandem_ascend_device *device, void *stream,
                                   const uint8_t *codes, const uint8_t *scales,
                                   const uint16_t *weights, const uint8_t *cache,
                                   const int32_t *table, const int32_t *row_slot,
                                   const int32_t *lens, uint16_t *out, int64_t T, int64_t width,
                                   int32_t heads, int32_t dim, int32_t columns,
                                   int32_t block_entries) {
  IndexShape s;
  if (const int32_t status =
          plan_scores(*device, kMostTileRows, T, width, heads, dim, columns, block_entries, s))
    return status;
  if (T == 0 || width == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(index_scores_kernel, int64_t(s.blocks), stream, gm_cast<uint8_t>(codes),
                       gm_cast<uint8_t>(scales), gm_cast<bfloat16_t>(weights),
                       gm_cast<uint8_t>(cache), gm_cast<int32_t>(table), gm_cast<int32_t>(row_slot),
                       gm_cast<int32_t>(lens), gm_cast<bfloat16_t>(out), s.rows, s.heads, s.dim,
                       s.width, s.columns, s.block_entries, s.tile_rows, s.span, s.blocks,
                       s.l0_bytes, s.l0c_bytes);
}

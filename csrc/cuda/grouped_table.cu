#include "grouped_table.cuh"

namespace tandem {

namespace {

constexpr int32_t kWarp = 32, kWarps = 8, kThreads = kWarp * kWarps;

// The next array of a workspace, aligned as the driver aligns memory.
template <class T>
T *take(uint8_t *base, int64_t &used, int64_t count) {
  T *place = reinterpret_cast<T *>(base + used);
  used = up(used + count * static_cast<int64_t>(sizeof(T)), 256) * 256;
  return place;
}

GroupTable lay_out(uint8_t *base, int64_t &used, int32_t rows, int32_t groups, int32_t depth) {
  GroupTable t;
  t.scales = take<uint8_t>(base, used, group_bands(rows, groups) * scale_tiles(depth) * kTileBytes);
  t.shape = take<GroupShape>(base, used, groups);
  t.w = take<const void *>(base, used, groups);
  t.x = take<const void *>(base, used, groups);
  t.w_scale = take<const void *>(base, used, groups);
  t.x_scale = take<const void *>(base, used, groups);
  t.out = take<void *>(base, used, groups);
  t.w_stride = take<GroupStride>(base, used, groups);
  t.x_stride = take<GroupStride>(base, used, groups);
  t.out_stride = take<GroupOutStride>(base, used, groups);
  t.w_layout = take<ScaleLayout>(base, used, groups);
  t.x_layout = take<ScaleLayout>(base, used, groups);
  return t;
}

}  // namespace

GroupTable carve(Workspace workspace, const Groups &g, Workspace *rest) {
  int64_t used = 0;
  GroupTable table = lay_out(workspace.data, used, g.rows, g.groups, g.depth);
  *rest = {workspace.data + used, workspace.bytes - used};
  return table;
}

int64_t group_table_bytes(int32_t rows, int32_t groups, int32_t depth) {
  int64_t used = 0;
  lay_out(nullptr, used, rows, groups, depth);
  return used;
}

// A thread for each group writes its entry.
__global__ void fill_group_table(Groups g, GroupTable table) {
  int32_t e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= g.groups) return;
  GroupRows rows = group_rows(g.ends, e);
  int32_t tiles = scale_tiles(g.depth);
  table.shape[e] = cute::make_shape(g.outputs, rows.count, g.depth);
  table.w[e] =
      static_cast<const uint8_t *>(g.w) + static_cast<int64_t>(e) * g.outputs * g.depth / 2;
  table.x[e] = static_cast<const uint8_t *>(g.x) + static_cast<int64_t>(rows.first) * g.depth;
  table.w_scale[e] = g.w_scale + e * scale_bytes(g.outputs, g.depth);
  table.x_scale[e] = table.scales + static_cast<int64_t>(rows.band) * tiles * kTileBytes;
  table.out[e] = static_cast<uint16_t *>(g.out) + static_cast<int64_t>(rows.first) * g.outputs;
  table.w_stride[e] = cute::make_stride(static_cast<int64_t>(g.depth), cute::_1{}, cute::_0{});
  table.x_stride[e] = cute::make_stride(static_cast<int64_t>(g.depth), cute::_1{}, cute::_0{});
  table.out_stride[e] = cute::make_stride(cute::_1{}, static_cast<int64_t>(g.outputs), cute::_0{});
  table.w_layout[e] = scale_layout(g.outputs, g.depth, 1, tiles, tiles);
  table.x_layout[e] = scale_layout(rows.count, g.depth, 1, tiles, tiles);
}

// A warp for each row: its scales go where its group wants them, or its outputs become zero.
__global__ void place_group_rows(Groups g, uint8_t *scales) {
  int32_t row = blockIdx.x * kWarps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (row >= g.rows) return;
  int32_t e = group_of_row(g.ends, g.groups, row);
  if (e == g.groups) {
    uint4 *out = reinterpret_cast<uint4 *>(static_cast<uint16_t *>(g.out) +
                                           static_cast<int64_t>(row) * g.outputs);
    for (int32_t i = lane; i < g.outputs / 8; i += kWarp) out[i] = make_uint4(0, 0, 0, 0);
    return;
  }
  GroupRows group = group_rows(g.ends, e);
  int32_t tiles = scale_tiles(g.depth);
  const uint32_t *source = reinterpret_cast<const uint32_t *>(g.x_scale);
  uint32_t *target =
      reinterpret_cast<uint32_t *>(scales) + static_cast<int64_t>(group.band) * tiles * kTileRows;
  for (int32_t tile = lane; tile < tiles; tile += kWarp)
    target[scale_word(row - group.first, tile, tiles)] = source[scale_word(row, tile, tiles)];
}

int32_t prepare_groups(const Groups &g, const GroupTable &table, Stream stream) {
  fill_group_table<<<static_cast<uint32_t>(up(g.groups, kThreads)), kThreads, 0, stream>>>(g,
                                                                                           table);
  place_group_rows<<<static_cast<uint32_t>(up(g.rows, kWarps)), kThreads, 0, stream>>>(
      g, table.scales);
  if (cudaPeekAtLastError() != cudaSuccess) return TANDEM_LAUNCH_FAILED;
  return TANDEM_OK;
}

}  // namespace tandem

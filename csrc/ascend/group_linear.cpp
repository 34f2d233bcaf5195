// group_linear: a dense product on the cube cores, a weight for each group of channels.
#include "group_linear.h"

#include "_product_launch.h"

using namespace tandem;

__global__ __cube__ void group_linear_kernel(Gm<fp8_e4m3fn_t> x, Gm<half> x_scale,
                                             Gm<fp8_e4m3fn_t> w, Gm<half> w_scale, Gm<bfloat16_t> y,
                                             uint32_t rows, uint32_t groups, uint32_t outputs,
                                             uint32_t depth, uint32_t tile_rows,
                                             uint32_t tile_outputs, uint32_t chunk,
                                             uint32_t l1_bytes, uint32_t l0_bytes,
                                             uint32_t l0c_bytes) {
  dense_tiles<fp8_e4m3fn_t, bfloat16_t, true>(x, x_scale, w, w_scale, y, rows, groups, outputs,
                                              depth, {tile_rows, tile_outputs, chunk}, l1_bytes,
                                              l0_bytes, l0c_bytes);
}

int32_t tandem_ascend_group_linear(const tandem_ascend_device *device, void *stream,
                                   const uint8_t *x, const uint8_t *x_scale, const uint8_t *w,
                                   const uint8_t *w_scale, uint16_t *y, int64_t T, int64_t G,
                                   int64_t N, int64_t K) {
  if (K % kScalesOf != 0) return TANDEM_BAD_VALUE;
  const DenseShape shape{T, G, N, K};
  if (const int32_t status = check_dense(shape)) return status;
  if (T == 0) return TANDEM_OK;
  const Tile tile = choose_tile(*device, T, N, G, false);
  if (!fits(*device, tile)) return TANDEM_TOO_LARGE;
  return TANDEM_LAUNCH(group_linear_kernel, dense_blocks(*device, shape, tile), stream,
                       gm_cast<fp8_e4m3fn_t>(x), gm_cast<half>(x_scale), gm_cast<fp8_e4m3fn_t>(w),
                       gm_cast<half>(w_scale), gm_cast<bfloat16_t>(y), uint32_t(T), uint32_t(G),
                       uint32_t(N), uint32_t(K), tile.rows, tile.outputs, tile.chunk,
                       uint32_t(device->l1_bytes), uint32_t(device->l0a_bytes),
                       uint32_t(device->l0c_bytes));
}

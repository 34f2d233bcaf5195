// linear: a dense product on the cube cores, one weight for all rows.
#include "linear.h"

#include <type_traits>

#include "_product_launch.h"

using namespace tandem;

#define TANDEM_LINEAR(name, type, out, scaled)                                              \
  __global__ __cube__ void name(Gm<type> x, Gm<half> x_scale, Gm<type> w, Gm<half> w_scale, \
                                Gm<out> y, uint32_t rows, uint32_t outputs, uint32_t depth, \
                                uint32_t tile_rows, uint32_t tile_outputs, uint32_t chunk,  \
                                uint32_t l1_bytes, uint32_t l0_bytes, uint32_t l0c_bytes) { \
    dense_tiles<type, out, scaled>(x, x_scale, w, w_scale, y, rows, 1, outputs, depth,      \
                                   {tile_rows, tile_outputs, chunk}, l1_bytes, l0_bytes,    \
                                   l0c_bytes);                                              \
  }

TANDEM_LINEAR(linear_bf16_to_bf16, bfloat16_t, bfloat16_t, false)
TANDEM_LINEAR(linear_bf16_to_f32, bfloat16_t, float, false)
TANDEM_LINEAR(linear_f32_to_bf16, float, bfloat16_t, false)
TANDEM_LINEAR(linear_f32_to_f32, float, float, false)
TANDEM_LINEAR(linear_mx8_to_bf16, fp8_e4m3fn_t, bfloat16_t, true)
TANDEM_LINEAR(linear_mx8_to_f32, fp8_e4m3fn_t, float, true)

namespace {

struct Pointers {
  const void *x, *x_scale, *w, *w_scale;
  void *y;
};

// Check, cut and start one of the kernels above.
#define TANDEM_START(kernel, type, out)                                                            \
  TANDEM_LAUNCH(kernel, blocks, stream, gm_cast<type>(p.x), gm_cast<half>(p.x_scale),              \
                gm_cast<type>(p.w), gm_cast<half>(p.w_scale), gm_cast<out>(p.y),                   \
                uint32_t(shape.rows), uint32_t(shape.outputs), uint32_t(shape.depth), tile.rows,   \
                tile.outputs, tile.chunk, uint32_t(device->l1_bytes), uint32_t(device->l0a_bytes), \
                uint32_t(device->l0c_bytes))

template <class T>
int32_t start(const tandem_ascend_device *device, void *stream, const Pointers &p,
              const DenseShape &shape, int32_t wide) {
  if (const int32_t status = check_dense(shape)) return status;
  if (shape.rows == 0) return TANDEM_OK;
  const Tile tile = choose_tile(*device, shape.rows, shape.outputs, 1, false);
  if (!fits(*device, tile)) return TANDEM_TOO_LARGE;
  const int64_t blocks = dense_blocks(*device, shape, tile);
  if constexpr (std::is_same_v<T, bfloat16_t>)
    return wide ? TANDEM_START(linear_bf16_to_f32, T, float)
                : TANDEM_START(linear_bf16_to_bf16, T, bfloat16_t);
  if constexpr (std::is_same_v<T, float>)
    return wide ? TANDEM_START(linear_f32_to_f32, T, float)
                : TANDEM_START(linear_f32_to_bf16, T, bfloat16_t);
  if constexpr (std::is_same_v<T, fp8_e4m3fn_t>)
    return wide ? TANDEM_START(linear_mx8_to_f32, T, float)
                : TANDEM_START(linear_mx8_to_bf16, T, bfloat16_t);
}

}  // namespace

int32_t tandem_ascend_linear_bf16(const tandem_ascend_device *device, void *stream,
                                  const uint16_t *x, const uint16_t *w, void *y, int64_t T,
                                  int64_t N, int64_t K, int32_t wide) {
  return start<bfloat16_t>(device, stream, {x, nullptr, w, nullptr, y}, {T, 1, N, K}, wide);
}

int32_t tandem_ascend_linear_f32(const tandem_ascend_device *device, void *stream, const float *x,
                                 const float *w, void *y, int64_t T, int64_t N, int64_t K,
                                 int32_t wide) {
  return start<float>(device, stream, {x, nullptr, w, nullptr, y}, {T, 1, N, K}, wide);
}

int32_t tandem_ascend_linear_mx8(const tandem_ascend_device *device, void *stream, const uint8_t *x,
                                 const uint8_t *x_scale, const uint8_t *w, const uint8_t *w_scale,
                                 void *y, int64_t T, int64_t N, int64_t K, int32_t wide) {
  if (K % kScalesOf != 0) return TANDEM_BAD_VALUE;
  return start<fp8_e4m3fn_t>(device, stream, {x, x_scale, w, w_scale, y}, {T, 1, N, K}, wide);
}

// CUTLASS on the host, over the layouts of csrc/cuda: where its layout of scales puts each byte, and its reference of a
// block-scaled product over operands described as the kernels describe them.
#include <cutlass/util/reference/host/gett.hpp>

#include "../../csrc/cuda/scale_layout.cuh"

using namespace tandem;

// Byte of the scale of (row, k, batch); `out` is [count][rows][depth / 32].
extern "C" void layout_offsets(int32_t rows, int32_t depth, int32_t count, int32_t band, int32_t batch, int64_t *out) {
  ScaleLayout layout = scale_layout(rows, depth, count, band, batch);
  for (int32_t b = 0; b < count; ++b)
    for (int32_t row = 0; row < rows; ++row)
      for (int32_t group = 0; group < depth / kGroup; ++group)
        *out++ = static_cast<int64_t>(layout(row, group * kGroup, b));
}

// Strides of CUTLASS's own layout of a matrix [rows, depth], in bytes from one band, tile and matrix to the next.
extern "C" void own_strides(int32_t rows, int32_t depth, int32_t count, int64_t *out) {
  auto layout = ScaleConfig::tile_atom_to_shape_SFA(cute::make_shape(rows, 64, depth, count));
  out[0] = static_cast<int64_t>(layout(kTileRows, 0, 0));
  out[1] = static_cast<int64_t>(layout(0, kTileDepth, 0));
  out[2] = static_cast<int64_t>(layout(0, 0, 1));
}

// out [tokens, outputs] f32 of an mxfp8 activation and an mxfp8 or mxfp4 weight, M-major as the kernels write it.
template <class Weight>
void product(const void *w, const uint8_t *w_scale, const void *x, const uint8_t *x_scale, int32_t tokens, int32_t outputs,
             int32_t depth, float *out) {
  using namespace cute;
  using Scale = cutlass::float_ue8m0_t;
  int32_t tiles = scale_tiles(depth);
  auto w_values = make_tensor(recast_ptr<Weight>(w),
                              make_layout(make_shape(outputs, depth, 1), make_stride(int64_t(depth), _1{}, int64_t(0))));
  auto x_values = make_tensor(static_cast<const cutlass::float_e4m3_t *>(x),
                              make_layout(make_shape(tokens, depth, 1), make_stride(int64_t(depth), _1{}, int64_t(0))));
  auto w_scales = make_tensor(reinterpret_cast<const Scale *>(w_scale), scale_layout(outputs, depth, 1, tiles, tiles));
  auto x_scales = make_tensor(reinterpret_cast<const Scale *>(x_scale), scale_layout(tokens, depth, 1, tiles, tiles));
  auto result = make_tensor(out, make_layout(make_shape(outputs, tokens, 1), make_stride(_1{}, int64_t(outputs), int64_t(0))));
  cutlass::reference::host::GettBlockScalingMainloopParams<float, decltype(w_values), decltype(w_scales),
                                                           decltype(x_values), decltype(x_scales)>
      main{w_values, w_scales, x_values, x_scales};
  cutlass::reference::host::GettEpilogueParams<float, float, float, float, decltype(result), decltype(result)> end;
  end.C = result;
  end.D = result;
  end.alpha = 1.0f;
  end.beta = 0.0f;
  cutlass::reference::host::Gemm3x(main, end);
}

extern "C" void product_fp8(const void *w, const uint8_t *w_scale, const void *x, const uint8_t *x_scale, int32_t tokens,
                            int32_t outputs, int32_t depth, float *out) {
  product<cutlass::float_e4m3_t>(w, w_scale, x, x_scale, tokens, outputs, depth, out);
}

extern "C" void product_fp4(const void *w, const uint8_t *w_scale, const void *x, const uint8_t *x_scale, int32_t tokens,
                            int32_t outputs, int32_t depth, float *out) {
  product<cutlass::float_e2m1_t>(w, w_scale, x, x_scale, tokens, outputs, depth, out);
}

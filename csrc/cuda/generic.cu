#include <cuda_runtime.h>

#include "generic.h"

namespace tandem {

namespace {
constexpr int32_t kThreads = 256;
}

// A thread for each output; the outputs of a row lie in neighbouring threads, which read its values
// together.
__global__ void generic_product(GenericProduct p, int64_t width) {
  int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index < p.tokens * width) generic_output(p, index / width, index % width, width);
}

int32_t run_generic(const GenericProduct &p, Stream stream) {
  int64_t width = generic_width(p);
  generic_product<<<static_cast<uint32_t>(up(p.tokens * width, kThreads)), kThreads, 0, stream>>>(
      p, width);
  if (cudaPeekAtLastError() != cudaSuccess) return TANDEM_LAUNCH_FAILED;
  return TANDEM_OK;
}

// A thread adds four neighbouring values; their number is a multiple of four.
__global__ void sum_parts(const float4 *parts, int32_t count, int64_t quads, void *out,
                          int32_t out_format) {
  int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= quads) return;
  float4 sum = parts[index];
  for (int32_t i = 1; i < count; ++i) {
    float4 next = parts[i * quads + index];
    sum = make_float4(sum.x + next.x, sum.y + next.y, sum.z + next.z, sum.w + next.w);
  }
  if (out_format == TANDEM_F32)
    static_cast<float4 *>(out)[index] = sum;
  else
    static_cast<ushort4 *>(out)[index] =
        make_ushort4(to_bf16(sum.x), to_bf16(sum.y), to_bf16(sum.z), to_bf16(sum.w));
}

int32_t add_parts(const float *parts, int32_t count, int64_t values, void *out, int32_t out_format,
                  Stream stream) {
  int64_t quads = values / 4;
  sum_parts<<<static_cast<uint32_t>(up(quads, kThreads)), kThreads, 0, stream>>>(
      reinterpret_cast<const float4 *>(parts), count, quads, out, out_format);
  if (cudaPeekAtLastError() != cudaSuccess) return TANDEM_LAUNCH_FAILED;
  return TANDEM_OK;
}

}  // namespace tandem

// The C ABI: checks, the choice of a kernel, and the description of its operands.
#include <cuda_runtime.h>

#include "generic.h"
#include "kernels.h"
#include "plan.h"

namespace tandem {
namespace {

constexpr int64_t kMost = 0x7fffffff;
constexpr int32_t kMostMultiprocessors = 192;

// What stops kernels from running here; the number of multiprocessors where nothing does.
int32_t probe(int32_t *multiprocessors) {
  int count = 0, device = 0, major = 0, minor = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver || error == cudaErrorSystemDriverMismatch ||
      error == cudaErrorCompatNotSupportedOnDevice || error == cudaErrorInitializationError)
    return TANDEM_NO_DRIVER;
  if (error != cudaSuccess || count == 0 || cudaGetDevice(&device) != cudaSuccess)
    return TANDEM_NO_DEVICE;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(multiprocessors, cudaDevAttrMultiProcessorCount, device) !=
          cudaSuccess)
    return TANDEM_NO_DEVICE;
  if (major != 10 || minor != 0) return TANDEM_WRONG_DEVICE;
  return TANDEM_OK;
}

bool scaled(int32_t format) { return format == TANDEM_MXFP8 || format == TANDEM_MXFP4; }

bool aligned(const void *pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

int32_t check_sizes(int64_t rows, int64_t batches, int64_t outputs, int64_t depth) {
  if (rows < 0 || batches < 1 || outputs < 1 || depth < 1) return TANDEM_BAD_SHAPE;
  if (rows > kMost || batches > kMost || outputs > kMost || depth > kMost) return TANDEM_BAD_SHAPE;
  if (outputs * batches > kMost || depth * batches > kMost) return TANDEM_BAD_SHAPE;
  return TANDEM_OK;
}

// Scales of a matrix are addressed in 32 bits, and a group of 32 values is never cut.
int32_t check_scales(int64_t rows, int64_t depth) {
  if (depth % kGroup != 0 || rows * depth / kGroup > kMost) return TANDEM_BAD_SHAPE;
  return TANDEM_OK;
}

int32_t check_linear(int32_t x, int32_t w, int32_t out, int64_t T, int64_t N, int64_t K) {
  bool formats = (x == TANDEM_BF16 || x == TANDEM_MXFP8) && w >= TANDEM_BF16 && w <= TANDEM_MXFP4 &&
                 (out == TANDEM_BF16 || out == TANDEM_F32);
  if (!formats) return TANDEM_BAD_VALUE;
  if (int32_t status = check_sizes(T, 1, N, K)) return status;
  return scaled(x) || scaled(w) ? check_scales(T > N ? T : N, K) : TANDEM_OK;
}

int32_t check_group(int64_t T, int64_t G, int64_t N, int64_t K) {
  if (int32_t status = check_sizes(T, G, N, K)) return status;
  if (int32_t status = check_scales(T, G * K)) return status;
  return check_scales(G * N, K);
}

int32_t check_grouped(int32_t w, int64_t T, int64_t E, int64_t N, int64_t K) {
  if (!scaled(w)) return TANDEM_BAD_VALUE;
  if (int32_t status = check_sizes(T, E, N, K)) return status;
  return check_scales(T > N ? T : N, K);
}

// Codes, values and outputs; scales are null for operands without.
int32_t check_pointers(const void *x, const uint8_t *x_scale, bool x_scaled, const void *w,
                       const uint8_t *w_scale, bool w_scaled, const void *out) {
  if (!x || !w || !out || (x_scaled && !x_scale) || (w_scaled && !w_scale))
    return TANDEM_NULL_POINTER;
  bool ok = aligned(x, 16) && aligned(w, 16) && aligned(out, 16);
  ok = ok && (!x_scaled || aligned(x_scale, 128)) && (!w_scaled || aligned(w_scale, 128));
  return ok ? TANDEM_OK : TANDEM_MISALIGNED;
}

int32_t check_workspace(const void *workspace, int64_t given, int64_t needed) {
  if (needed == 0) return TANDEM_OK;
  if (!workspace) return TANDEM_NULL_POINTER;
  if (!aligned(workspace, 256)) return TANDEM_MISALIGNED;
  if (given < needed) return TANDEM_SMALL_WORKSPACE;
  return TANDEM_OK;
}

const BatchKernel &batch_kernel(Kernel kernel) {
  switch (kernel) {
    case Kernel::kMxSmallBf16:
      return mx_small_bf16;
    case Kernel::kMxSmallF32:
      return mx_small_f32;
    case Kernel::kMxLargeBf16:
      return mx_large_bf16;
    case Kernel::kMxLargeF32:
      return mx_large_f32;
    case Kernel::kBf16Small:
      return bf16_small;
    default:
      return bf16_large;
  }
}

const GroupsKernel &groups_kernel(Kernel kernel) {
  return kernel == Kernel::kGroupedSmall ? grouped_small : grouped_large;
}

Operand operand(const void *data, const uint8_t *scale, int32_t format, int64_t depth) {
  return {data, scaled(format) ? scale : nullptr, format, depth, scale_tiles(depth)};
}

int64_t matrix_bytes(int32_t format, int64_t elements) {
  return format == TANDEM_F32     ? elements * 4
         : format == TANDEM_BF16  ? elements * 2
         : format == TANDEM_MXFP4 ? elements / 2
                                  : elements;
}

// A product as a batch of one, or as one for each part of its sum.
Batch batch_of(const void *x, const uint8_t *x_scale, const void *w, const uint8_t *w_scale,
               int64_t T, int64_t N, int64_t K, void *out, int32_t splits) {
  int32_t depth = static_cast<int32_t>(K / splits), tiles = scale_tiles(K),
          part = scale_tiles(depth);
  return {x,
          w,
          x_scale,
          w_scale,
          out,
          static_cast<int32_t>(T),
          static_cast<int32_t>(N),
          depth,
          splits,
          K,
          depth,
          K,
          depth,
          N,
          T * N,
          tiles,
          part,
          tiles,
          part};
}

int32_t linear_workspace(int32_t x_format, int32_t w_format, int32_t out_format, int64_t T,
                         int64_t N, int64_t K, int64_t *bytes) {
  if (!bytes) return TANDEM_NULL_POINTER;
  if (int32_t status = check_linear(x_format, w_format, out_format, T, N, K)) return status;
  *bytes = parts_bytes(choose_linear(x_format, w_format, out_format, T, N, K), out_format, T, N);
  return TANDEM_OK;
}

int32_t linear(void *stream, const void *x, const uint8_t *x_scale, int32_t x_format, const void *w,
               const uint8_t *w_scale, int32_t w_format, int64_t T, int64_t N, int64_t K, void *out,
               int32_t out_format, void *workspace, int64_t workspace_bytes) {
  int32_t multiprocessors = 0;
  if (int32_t status = probe(&multiprocessors)) return status;
  if (int32_t status = check_linear(x_format, w_format, out_format, T, N, K)) return status;
  if (T == 0) return TANDEM_OK;
  if (int32_t status =
          check_pointers(x, x_scale, scaled(x_format), w, w_scale, scaled(w_format), out))
    return status;
  Choice choice = choose_linear(x_format, w_format, out_format, T, N, K);
  int64_t parts = parts_bytes(choice, out_format, T, N);
  if (int32_t status = check_workspace(workspace, workspace_bytes, parts)) return status;
  Stream queue = static_cast<Stream>(stream);
  if (choice.kernel == Kernel::kGeneric)
    return run_generic({operand(x, x_scale, x_format, K), operand(w, w_scale, w_format, K), T, N, K,
                        1, nullptr, 0, 0, out, out_format},
                       queue);
  void *target = parts ? workspace : out;
  Batch batch = batch_of(x, x_scale, w, w_scale, T, N, K, target, choice.splits);
  if (int32_t status = batch_kernel(choice.kernel).run(batch, queue)) return status;
  if (!parts) return TANDEM_OK;
  return add_parts(static_cast<const float *>(workspace), choice.splits, T * N, out, out_format,
                   queue);
}

const char *linear_kernel(int32_t x_format, int32_t w_format, int32_t out_format, int64_t T,
                          int64_t N, int64_t K) {
  if (check_linear(x_format, w_format, out_format, T, N, K)) return "";
  return tile_class(choose_linear(x_format, w_format, out_format, T, N, K).kernel).name;
}

int32_t group_linear(void *stream, const void *x, const uint8_t *x_scale, const void *w,
                     const uint8_t *w_scale, int64_t T, int64_t G, int64_t N, int64_t K,
                     void *out) {
  int32_t multiprocessors = 0;
  if (int32_t status = probe(&multiprocessors)) return status;
  if (int32_t status = check_group(T, G, N, K)) return status;
  if (T == 0) return TANDEM_OK;
  if (int32_t status = check_pointers(x, x_scale, true, w, w_scale, true, out)) return status;
  Kernel kernel = choose_group(T, G, N, K);
  Stream queue = static_cast<Stream>(stream);
  if (kernel == Kernel::kGeneric)
    return run_generic(
        {operand(x, x_scale, TANDEM_MXFP8, G * K), operand(w, w_scale, TANDEM_MXFP8, K), T, N, K, G,
         nullptr, N * K, scale_bytes(N, K), out, TANDEM_BF16},
        queue);
  int32_t tiles = scale_tiles(K), all = scale_tiles(G * K);
  int32_t per_weight = static_cast<int32_t>(scale_bytes(N, K) / kTileBytes);
  return batch_kernel(kernel).run(
      {x, w, x_scale, w_scale, out, static_cast<int32_t>(T), static_cast<int32_t>(N),
       static_cast<int32_t>(K), static_cast<int32_t>(G), G * K, K, K, N * K, G * N, N, all, tiles,
       tiles, per_weight},
      queue);
}

const char *group_linear_kernel(int64_t T, int64_t G, int64_t N, int64_t K) {
  return check_group(T, G, N, K) ? "" : tile_class(choose_group(T, G, N, K)).name;
}

int32_t grouped_linear_workspace(int32_t w_format, int64_t T, int64_t E, int64_t N, int64_t K,
                                 int64_t *bytes) {
  if (!bytes) return TANDEM_NULL_POINTER;
  if (int32_t status = check_grouped(w_format, T, E, N, K)) return status;
  Kernel kernel = choose_grouped(w_format, T, E, N, K);
  *bytes = 0;
  if (kernel == Kernel::kGeneric) return TANDEM_OK;
  int64_t beside = groups_kernel(kernel).workspace(kMostMultiprocessors);
  *bytes = beside + group_table_bytes(static_cast<int32_t>(T), static_cast<int32_t>(E),
                                      static_cast<int32_t>(K));
  return TANDEM_OK;
}

int32_t grouped_linear(void *stream, const void *x, const uint8_t *x_scale, const void *w,
                       const uint8_t *w_scale, int32_t w_format, const int32_t *ends, int64_t T,
                       int64_t E, int64_t N, int64_t K, void *out, void *workspace,
                       int64_t workspace_bytes) {
  int32_t multiprocessors = 0;
  if (int32_t status = probe(&multiprocessors)) return status;
  int64_t needed = 0;
  if (int32_t status = grouped_linear_workspace(w_format, T, E, N, K, &needed)) return status;
  if (T == 0) return TANDEM_OK;
  if (int32_t status = check_pointers(x, x_scale, true, w, w_scale, true, out)) return status;
  if (!ends) return TANDEM_NULL_POINTER;
  if (!aligned(ends, 4) || (w_format == TANDEM_MXFP4 && !aligned(w, 32))) return TANDEM_MISALIGNED;
  if (int32_t status = check_workspace(workspace, workspace_bytes, needed)) return status;
  Kernel kernel = choose_grouped(w_format, T, E, N, K);
  Stream queue = static_cast<Stream>(stream);
  if (kernel == Kernel::kGeneric)
    return run_generic(
        {operand(x, x_scale, TANDEM_MXFP8, K), operand(w, w_scale, w_format, K), T, N, K, E, ends,
         matrix_bytes(w_format, N * K), scale_bytes(N, K), out, TANDEM_BF16},
        queue);
  int32_t used = multiprocessors < kMostMultiprocessors ? multiprocessors : kMostMultiprocessors;
  return groups_kernel(kernel).run(
      {x, w, x_scale, w_scale, ends, out, static_cast<int32_t>(T), static_cast<int32_t>(E),
       static_cast<int32_t>(N), static_cast<int32_t>(K)},
      {static_cast<uint8_t *>(workspace), workspace_bytes}, used, queue);
}

const char *grouped_linear_kernel(int32_t w_format, int64_t T, int64_t E, int64_t N, int64_t K) {
  return check_grouped(w_format, T, E, N, K)
             ? ""
             : tile_class(choose_grouped(w_format, T, E, N, K)).name;
}

int32_t kernel_facts(int32_t index, tandem_cuda_kernel *facts) {
  if (!facts) return TANDEM_NULL_POINTER;
  if (index < 0 || index >= kTileClasses) return TANDEM_BAD_VALUE;
  const TileClass &tile = kTiles[index];
  int32_t shared = 0;
  if (tile.kernel == Kernel::kGroupedSmall || tile.kernel == Kernel::kGroupedLarge)
    shared = groups_kernel(tile.kernel).shared_bytes;
  else if (tile.kernel != Kernel::kGeneric)
    shared = batch_kernel(tile.kernel).shared_bytes;
  *facts = {tile.name, tile.use, tile.outputs, tile.tokens, tile.depth, tile.multiprocessors,
            shared};
  return TANDEM_OK;
}

int32_t device_status() {
  int32_t multiprocessors = 0;
  return probe(&multiprocessors);
}

const char *status_string(int32_t status) {
  switch (status) {
    case TANDEM_OK:
      return "done";
    case TANDEM_NULL_POINTER:
      return "a pointer is null";
    case TANDEM_MISALIGNED:
      return "a pointer is not aligned: codes, values and outputs to 16 bytes, codes of mxfp4 to "
             "32, scales to 128, the workspace to 256";
    case TANDEM_BAD_SHAPE:
      return "a dimension is out of range, or not a multiple of 32 where there are scales";
    case TANDEM_BAD_VALUE:
      return "a format is not one of those that the entry takes";
    case TANDEM_NO_DRIVER:
      return "there is no CUDA driver, or it is older than CUDA 13";
    case TANDEM_NO_DEVICE:
      return "the CUDA driver shows no device";
    case TANDEM_WRONG_DEVICE:
      return "the current device is not of compute capability 10.0, which the kernels are for";
    case TANDEM_SMALL_WORKSPACE:
      return "the workspace is smaller than its size query says";
    case TANDEM_LAUNCH_FAILED:
      return "the driver refused to launch a kernel";
    default:
      return "unknown status";
  }
}

constexpr tandem_cuda_api kApi = {sizeof(tandem_cuda_api),
                                  TANDEM_CUDA_ABI_MAJOR,
                                  TANDEM_CUDA_ABI_MINOR,
                                  0,
                                  status_string,
                                  device_status,
                                  kernel_facts,
                                  linear_workspace,
                                  linear,
                                  linear_kernel,
                                  group_linear,
                                  group_linear_kernel,
                                  grouped_linear_workspace,
                                  grouped_linear,
                                  grouped_linear_kernel};

}  // namespace
}  // namespace tandem

extern "C" __attribute__((visibility("default"))) const tandem_cuda_api *tandem_cuda_get_api(
    uint32_t major) {
  return major == TANDEM_CUDA_ABI_MAJOR ? &tandem::kApi : nullptr;
}

// A CUDA runtime that runs nothing and writes down what it is asked: linked with the library's objects in place of the
// real one, it shows on any machine what the host side would launch and how it describes memory to the copy engine.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

struct Launch {
  std::string name;
  int64_t sizes[10];  // grid, block, cluster, shared bytes
};
struct Map {
  int64_t values[2 + 1 + 5 + 5 + 5];  // element type, rank, address, dims, strides in bytes (the first is the element), box
};
struct Call {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};

std::map<const void *, std::string> &names() {
  static std::map<const void *, std::string> found;
  return found;
}
std::vector<Launch> launches;
std::vector<Map> maps;
std::vector<Call> calls;
int capability = 100, multiprocessors = 148;

void note(const void *function, dim3 grid, dim3 block, dim3 cluster, size_t shared) {
  Launch made{names()[function],
              {grid.x, grid.y, grid.z, block.x, block.y, block.z, cluster.x, cluster.y, cluster.z,
               static_cast<int64_t>(shared)}};
  launches.push_back(made);
}

CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims,
                const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *, CUtensorMapInterleave,
                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  memset(map, 0, sizeof *map);
  Map made{};
  made.values[0] = type;
  made.values[1] = rank;
  made.values[2] = reinterpret_cast<int64_t>(address);
  for (cuuint32_t i = 0; i < rank; ++i) {
    made.values[3 + i] = static_cast<int64_t>(dims[i]);
    made.values[8 + i] = i == 0 ? 0 : static_cast<int64_t>(strides[i - 1]);
    made.values[13 + i] = box[i];
  }
  maps.push_back(made);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

void fake_reset(int new_capability, int new_multiprocessors) {
  launches.clear();
  maps.clear();
  capability = new_capability;
  multiprocessors = new_multiprocessors;
}
int32_t fake_launches() { return static_cast<int32_t>(launches.size()); }
int32_t fake_maps() { return static_cast<int32_t>(maps.size()); }
const char *fake_launch(int32_t index, int64_t *sizes) {
  memcpy(sizes, launches[index].sizes, sizeof launches[index].sizes);
  return launches[index].name.c_str();
}
void fake_map(int32_t index, int64_t *values) { memcpy(values, maps[index].values, sizeof maps[index].values); }

void **__cudaRegisterFatBinary(void *) {
  static void *handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
void __cudaRegisterFunction(void **, const char *host, char *, const char *name, int, uint3 *, uint3 *, dim3 *, dim3 *, int *) {
  names()[host] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st *stream) {
  calls.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  Call made = calls.back();
  calls.pop_back();
  *grid = made.grid, *block = made.block, *shared = made.shared;
  *static_cast<cudaStream_t *>(stream) = made.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void *>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **, size_t shared, cudaStream_t) {
  note(kernel, grid, block, {1, 1, 1}, shared);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **) {
  dim3 cluster(1, 1, 1);
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
      auto dims = config->attrs[i].val.clusterDim;
      cluster = dim3(dims.x, dims.y, dims.z);
    }
  note(function, config->gridDim, config->blockDim, cluster, config->dynamicSmemBytes);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **, size_t shared, cudaStream_t) {
  note(function, grid, block, {1, 1, 1}, shared);
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *status) {
  *function = reinterpret_cast<void *>(encode);
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor   ? capability / 10
           : attribute == cudaDevAttrComputeCapabilityMinor ? capability % 10
                                                            : multiprocessors;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t) { return "none"; }

}  // extern "C"

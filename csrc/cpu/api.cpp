// The exported table of the CPU library.
#include "common.h"
#include "kernels.h"
#include "parallel.h"

namespace tandem {
namespace {

const char *isa() {
#if TANDEM_MULTIVERSION
  // The same questions, in the same order, that the compiler's own dispatcher asks.
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return "x86-64-v4";
  if (__builtin_cpu_supports("x86-64-v3")) return "x86-64-v3";
#endif
  return "baseline";
}

const char *status_string(int32_t status) {
  switch (status) {
    case TANDEM_OK:
      return "ok";
    case TANDEM_NULL_POINTER:
      return "a tensor pointer is NULL";
    case TANDEM_MISALIGNED:
      return "a tensor pointer is not aligned to its element";
    case TANDEM_BAD_SHAPE:
      return "a dimension is negative, zero or not a multiple of the group size";
    case TANDEM_BAD_VALUE:
      return "a scalar argument is outside its range";
    default:
      return "unknown status code";
  }
}

const tandem_api kApi = {
    sizeof(tandem_api),
    TANDEM_ABI_MAJOR,
    TANDEM_ABI_MINOR,
    parallel_available() ? 1u : 0u,
    isa,
    status_string,
    hc_mix,
    quantize_fp8_g32,
    fake_quant_fp8_g32,
    quantize_fp4_g32,
    quantize_nvfp4_g16,
};

}  // namespace
}  // namespace tandem

extern "C" __attribute__((visibility("default"))) const tandem_api *tandem_get_api(uint32_t major) {
  return major == TANDEM_ABI_MAJOR ? &tandem::kApi : nullptr;
}

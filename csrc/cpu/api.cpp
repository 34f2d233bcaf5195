// The exported table: the entries compiled for every instruction set.
#include "parallel.h"
#include "tandem.h"

// Filled in by the build: X(name, condition) for every instruction set, best first.
#include "instruction_sets.inc"

namespace tandem {

#define X(name, condition)              \
  namespace name {                      \
  extern const tandem_entry kEntries[]; \
  }
TANDEM_INSTRUCTION_SETS(X)
#undef X

namespace {

const char *status_string(int32_t status) {
  switch (status) {
    case TANDEM_OK:
      return "ok";
    case TANDEM_NULL_POINTER:
      return "a pointer is NULL that may not be";
    case TANDEM_MISALIGNED:
      return "a pointer is not aligned as the library needs it";
    case TANDEM_BAD_SHAPE:
      return "a dimension is negative, zero or not a multiple of the group size";
    case TANDEM_BAD_VALUE:
      return "a scalar argument is outside its range";
    case TANDEM_BAD_INDEX:
      return "an index in an array is out of range";
    default:
      return "unknown status code";
  }
}

int32_t replay(const tandem_entry_fn *entries, const int64_t *offsets, const uint8_t *words,
               int64_t count, int64_t *failed) {
  for (int64_t i = 0; i < count; ++i) {
    if (const int32_t status = entries[i](words + offsets[i])) {
      *failed = i;
      return status;
    }
  }
  return TANDEM_OK;
}

bool initialised() {
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
  return true;
}

const bool kInitialised = initialised();

#define X(name, condition) {#name, name::kEntries, kInitialised && (condition) ? 1 : 0},
const tandem_set kSets[] = {TANDEM_INSTRUCTION_SETS(X){nullptr, nullptr, 0}};
#undef X

const tandem_api kApi = {
    sizeof(tandem_api), TANDEM_ABI_MAJOR, TANDEM_ABI_MINOR, parallel_available() ? 1u : 0u, kSets,
    status_string,      replay,
};

}  // namespace
}  // namespace tandem

extern "C" __attribute__((visibility("default"))) const tandem_api *tandem_get_api(uint32_t major) {
  return major == TANDEM_ABI_MAJOR ? &tandem::kApi : nullptr;
}

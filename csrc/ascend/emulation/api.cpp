// The entries of tandem_ascend.h that are not kernels.
#include "../_status.h"
#include "cores.h"
#include "fault.h"
#include "global_memory.h"

using namespace tandem::emulation;

int32_t tandem_ascend_device_facts(tandem_ascend_device *device) {
  *device = {kCubeCores, kVectorCores, 248 << 10, 512 << 10, 64 << 10, 64 << 10, 256 << 10};
  return TANDEM_OK;
}

const char *tandem_ascend_status_string(int32_t status) { return tandem::status_text(status); }

int32_t tandem_ascend_emulated(void) { return 1; }

const char *tandem_ascend_last_fault(void) { return last_fault(); }

int32_t tandem_ascend_register(const void *pointer, int64_t bytes) {
  return register_global(reinterpret_cast<uint64_t>(pointer), static_cast<uint64_t>(bytes))
             ? TANDEM_OK
             : TANDEM_BAD_VALUE;
}

int32_t tandem_ascend_unregister(const void *pointer, int64_t bytes) {
  return unregister_global(reinterpret_cast<uint64_t>(pointer), static_cast<uint64_t>(bytes))
             ? TANDEM_OK
             : TANDEM_BAD_VALUE;
}

void tandem_ascend_forget_all(void) { forget_global(); }

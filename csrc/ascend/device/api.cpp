// The entries of tandem_ascend.h that are not kernels, on a device. Written from the page
// "PlatformAscendCManager"; there is no compiler for it where Tandem is developed, so it was never
// compiled with CANN.
#include "_status.h"
#include "tiling/platform/platform_ascendc.h"

int32_t tandem_ascend_device_facts(tandem_ascend_device *device) {
  using platform_ascendc::CoreMemType;
  const platform_ascendc::PlatformAscendC *platform =
      platform_ascendc::PlatformAscendCManager::GetInstance();
  if (platform == nullptr) return TANDEM_LAUNCH_FAILED;
  const auto bytes = [&](CoreMemType memory) {
    uint64_t size = 0;
    platform->GetCoreMemSize(memory, size);
    return int64_t(size);
  };
  *device = {int32_t(platform->GetCoreNumAic()),
             int32_t(platform->GetCoreNumAiv()),
             bytes(CoreMemType::UB),
             bytes(CoreMemType::L1),
             bytes(CoreMemType::L0_A),
             bytes(CoreMemType::L0_B),
             bytes(CoreMemType::L0_C)};
  return TANDEM_OK;
}

const char *tandem_ascend_status_string(int32_t status) { return tandem::status_text(status); }

int32_t tandem_ascend_emulated(void) { return 0; }

const char *tandem_ascend_last_fault(void) { return ""; }

int32_t tandem_ascend_register(const void *, int64_t) { return TANDEM_OK; }
int32_t tandem_ascend_unregister(const void *, int64_t) { return TANDEM_OK; }
void tandem_ascend_forget_all(void) {}

// Texts of the status codes of tandem_ascend.h.
#pragma once

#include "../include/tandem_ascend.h"

namespace tandem {

inline const char *status_text(int32_t status) {
  switch (status) {
    case TANDEM_OK:
      return "done";
    case TANDEM_BAD_VALUE:
      return "an argument is out of its range";
    case TANDEM_TOO_LARGE:
      return "a row or a tile does not fit the buffers of a core";
    case TANDEM_LAUNCH_FAILED:
      return "the runtime refused a launch";
    case TANDEM_EMULATION_FAULT:
      return "the emulation found a fault";
    default:
      return "unknown status";
  }
}

}  // namespace tandem

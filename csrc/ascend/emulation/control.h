// The control register of a core, CTRL.
//
// Modelled are the bits of conversions: 48 (floats keep infinity and NaN instead of saturating), 50
// (fp8 keeps NaN while saturating), 59 (integers wrap) and 60 (these bits hold for all
// instructions). Written from the pages "SetCtrlSpr" and "InitSocState".
#pragma once

#include "core.h"

namespace AscendC {

template <int8_t startBit, int8_t endBit>
inline void SetCtrlSpr(int64_t value) {
  static_assert(
      startBit == endBit && (startBit == 48 || startBit == 50 || startBit == 59 || startBit == 60),
      "modelled are bits 48, 50, 59 and 60, one at a time");
  const uint64_t bit = 1ull << startBit;
  uint64_t &control = emulation::core().control;
  control = value != 0 ? control | bit : control & ~bit;
}

// Bit 48 stays as it is, all others get their default.
inline void InitSocState() {
  uint64_t &control = emulation::core().control;
  control = (control & 1ull << 48) | emulation::kControlDefault;
  emulation::core().atomic = 0;
}

}  // namespace AscendC

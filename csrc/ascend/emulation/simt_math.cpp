#include "simt_math.h"

#include "register_cast.h"

bfloat16_t __float2bfloat16_rn(const float x) {
  using namespace tandem::emulation;
  bfloat16_t result;
  result.bits = uint16_t(
      encode(kBfloat16, x, AscendC::RoundMode::CAST_RINT, saturates(SatMode::NO_SAT, false)));
  return result;
}

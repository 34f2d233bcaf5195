// The conversions of the number formats, for comparison with an independent decoding.
#include "kernel.h"

namespace {

using namespace tandem::emulation;

constexpr Format kFormats[] = {kHalf, kBfloat16, kE4m3, kE5m2, kE2m1, kE1m2};
constexpr AscendC::RoundMode kModes[] = {
    AscendC::RoundMode::CAST_RINT, AscendC::RoundMode::CAST_FLOOR, AscendC::RoundMode::CAST_CEIL,
    AscendC::RoundMode::CAST_ROUND, AscendC::RoundMode::CAST_TRUNC};

}  // namespace

TANDEM_API double decode_number(int32_t format, uint32_t code) {
  return decode(kFormats[format], code);
}

TANDEM_API uint32_t encode_number(int32_t format, double value, int32_t rounding,
                                  int32_t saturate) {
  return encode(kFormats[format], value, kModes[rounding], saturate != 0);
}

TANDEM_API uint32_t store_bfloat16(float value) { return bfloat16_t(value).bits; }
TANDEM_API float load_bfloat16(uint32_t bits) {
  bfloat16_t number;
  number.bits = static_cast<uint16_t>(bits);
  return static_cast<float>(number);
}

#include "register_cast.h"

namespace tandem::emulation {

namespace {

constexpr int kGlobalSaturation = 60, kFloatsStay = 48, kNanStays = 50, kIntegersWrap = 59;

bool control_bit(int bit) { return (core().control >> bit) & 1; }

}  // namespace

bool saturates(SatMode mode, bool to_integer) {
  if (!control_bit(kGlobalSaturation)) return mode == SatMode::SAT;
  return !control_bit(to_integer ? kIntegersWrap : kFloatsStay);
}

bool keeps_nan() { return control_bit(kNanStays); }

double rounded(double x, RoundMode mode) {
  if (!std::isfinite(x)) return x;
  const double kept = std::trunc(x);
  const double left = std::fabs(x - kept);
  const bool odd = std::fmod(kept, 2) != 0;
  if (!rounds_up(mode, std::signbit(x), odd, left)) return kept;
  return kept + std::copysign(1.0, x);
}

float to_float(int64_t x, RoundMode mode) {
  const float nearest = float(x);
  if (mode == RoundMode::CAST_RINT) return nearest;
  // The neighbours of x among floats, compared exactly: both fit 128 bits.
  const __int128 difference = __int128(x) - __int128(nearest);
  if (difference == 0) return nearest;
  const float infinity = std::numeric_limits<float>::infinity();
  const float below = difference > 0 ? nearest : std::nextafter(nearest, -infinity);
  const float above = difference > 0 ? std::nextafter(nearest, infinity) : nearest;
  switch (mode) {
    case RoundMode::CAST_FLOOR:
      return below;
    case RoundMode::CAST_CEIL:
      return above;
    case RoundMode::CAST_TRUNC:
      return x < 0 ? above : below;
    default:  // CAST_ROUND: the nearest, halves away from zero
      const __int128 down = __int128(x) - __int128(below), up = __int128(above) - __int128(x);
      if (down != up) return down < up ? below : above;
      return x < 0 ? below : above;
  }
}

void cast_pairs(RegTensor<bfloat16_t> &dst, const RegTensor<fp4x2_e2m1_t> &src, const MaskReg &mask,
                int part) {
  const ByteSet selected = taking_part(mask, 1, part, 4);
  require_known(src, selected, "Cast");
  std::array<bfloat16_t, kLanes<bfloat16_t>> results;
  std::memset(static_cast<void *>(results.data()), 0, kRegisterBytes);
  for (int i = 0; i < 64; ++i) {
    if (!has(selected, 4 * i + part)) continue;
    const uint8_t pair = src.bytes[4 * i + part];
    results[2 * i] = bfloat16_t(float(decode(kE2m1, pair & 15)));
    results[2 * i + 1] = bfloat16_t(float(decode(kE2m1, pair >> 4)));
  }
  set_lanes(dst, results);
}

void cast_pairs(RegTensor<fp4x2_e2m1_t> &dst, const RegTensor<bfloat16_t> &src, const MaskReg &mask,
                int part, RoundMode mode) {
  const ByteSet selected = taking_part(mask, 4, 0, 4);
  require_known(src, selected, "Cast");
  const auto lanes = lanes_of<bfloat16_t>(src);
  std::array<fp4x2_e2m1_t, kRegisterBytes> results{};
  for (int i = 0; i < 64; ++i) {
    if (!has(selected, 4 * i)) continue;
    const uint32_t low = encode(kE2m1, float(lanes[2 * i]), mode, true);
    const uint32_t high = encode(kE2m1, float(lanes[2 * i + 1]), mode, true);
    results[4 * i + part] = {uint8_t(low | high << 4)};
  }
  set_lanes(dst, results);
}

}  // namespace tandem::emulation

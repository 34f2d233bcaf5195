// swiglu_quant: g / (1 + e^-g) * u (* weight) in f32, quantised, with g = min(gate, limit) and
// u = clip(up, -limit, limit).
//
//   gate, up  bf16 [T, I]          I a multiple of 32
//   weight    f32 [T]              NULL: none
//   codes     u8 [T, I]            out, e4m3
//   scales    u8 [T, I / 32]       out
#include "codecs.h"
#include "parallel.h"
#include "vec_functions.h"

namespace tandem::TANDEM_ISA::ops::swiglu_quant {

constexpr int64_t kGroup = 32, kPiece = 8 * kGroup, kWork = 40;  // columns of a task; of a column

// NaN compares false and stays.
TANDEM_INLINE Register product(const uint16_t *gate, const uint16_t *up, float limit) {
  const Register high = all_lanes(limit), low = all_lanes(-limit);
  Register g = load_register(gate), u = load_register(up);
  g = g > high ? high : g;
  u = u > high ? high : u < low ? low : u;
  return g * sigmoid_lanes(g) * u;
}

TANDEM_INLINE void encode_piece(const uint16_t *gate, const uint16_t *up, float limit,
                                const float *weight, uint8_t *codes, uint8_t *scales, int64_t n) {
  for (int64_t k = 0; k < n; k += kGroup) {
    Register values[kPer32];
    for (int i = 0; i < kPer32; ++i) {
      const int64_t place = k + i * kRegister;
      values[i] = product(gate + place, up + place, limit);
      if (weight) values[i] *= *weight;
    }
    scales[k / kGroup] = encode_mxfp8_group(values, codes + k);
  }
}

int32_t run(const uint16_t *gate, const uint16_t *up, const float *weight, uint8_t *codes,
            uint8_t *scales, int64_t T, int64_t I, double limit) {
  if (T < 0 || I < kGroup || I % kGroup) return TANDEM_BAD_SHAPE;
  if (!(limit >= 0.0)) return TANDEM_BAD_VALUE;
  if (T && (!gate || !up || !codes || !scales)) return TANDEM_NULL_POINTER;
  const int64_t pieces = (I + kPiece - 1) / kPiece;
  parallel_for(T * pieces, kWork * (I < kPiece ? I : kPiece), [=](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t t = task / pieces, first = task % pieces * kPiece, place = t * I + first;
      encode_piece(gate + place, up + place, static_cast<float>(limit),
                   weight ? weight + t : nullptr, codes + place, scales + place / kGroup,
                   I - first < kPiece ? I - first : kPiece);
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::swiglu_quant

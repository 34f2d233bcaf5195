// dequantize: codes and scales to bf16.
//
//   codes   u8 [T, N] (mxfp8) or [T, N / 2]   N whole groups
//   scales  u8 [T, N / group]
//   x       bf16 [T, N]                       out
//   format  TANDEM_MXFP8, TANDEM_MXFP4 or TANDEM_NVFP4
#include "codecs.h"
#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::dequantize {

constexpr int64_t kStep = 32;  // channels at a time: groups of any format

void decode(int64_t format, const uint8_t *codes, const uint8_t *scales, int64_t count,
            uint16_t *x) {
  float values[kStep];
  decode_row(format, codes, scales, count, values);
  for (int64_t i = 0; i < count; i += kLanes) store(x + i, load(values + i));
}

int32_t run(const uint8_t *codes, const uint8_t *scales, uint16_t *x, int64_t T, int64_t N,
            int64_t format) {
  const int64_t group = group_of(format);
  if (!group) return TANDEM_BAD_VALUE;
  if (T < 0 || N < group || N % group) return TANDEM_BAD_SHAPE;
  if (T && (!codes || !scales || !x)) return TANDEM_NULL_POINTER;
  // Rows are whole groups and lie one after another, so that all of them are one.
  const int64_t all = T * N;
  parallel_for((all + kStep - 1) / kStep, 2 * kStep, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin * kStep; i < end * kStep && i < all; i += kStep)
      decode(format, codes + code_bytes(format, i), scales + i / group,
             all - i < kStep ? all - i : kStep, x + i);
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::dequantize

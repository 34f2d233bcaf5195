// quantize: rows to codes and scales; the rules stand in codecs.h.
//
//   x       bf16 [T, N]            N whole groups
//   codes   u8 [T, N] (mxfp8) or [T, N / 2]   out
//   scales  u8 [T, N / group]      out
//   format  TANDEM_MXFP8, TANDEM_MXFP4 or TANDEM_NVFP4
#include "codecs.h"
#include "parallel.h"

namespace tandem::TANDEM_ISA::ops::quantize {

int32_t run(const uint16_t *x, uint8_t *codes, uint8_t *scales, int64_t T, int64_t N,
            int64_t format) {
  const int64_t group = group_of(format);
  if (!group) return TANDEM_BAD_VALUE;
  if (T < 0 || N < group || N % group) return TANDEM_BAD_SHAPE;
  if (T && (!x || !codes || !scales)) return TANDEM_NULL_POINTER;
  parallel_for(T, 4 * N, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      encode_row(format, x + t * N, N, codes + t * code_bytes(format, N), scales + t * (N / group));
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::quantize

// Entry points of the CPU kernels; the contract of each stands in tandem.h.
#pragma once

#include <cstdint>

namespace tandem {

int32_t hc_mix(const uint16_t *trunk, const float *fn, const float *base, const float *scale,
               int64_t T, int64_t m, int64_t H, float norm_eps, float hc_eps, int32_t iters,
               float *pre, float *post, float *comb);

int32_t quantize_fp8_g32(const void *x, int32_t x_dtype, int64_t T, int64_t N, uint8_t *codes,
                         uint8_t *scales);

int32_t fake_quant_fp8_g32(const void *x, int32_t x_dtype, int64_t T, int64_t N, float *y,
                           uint8_t *scales);

int32_t quantize_fp4_g32(const uint16_t *x, int64_t T, int64_t N, uint8_t *packed, uint8_t *scales);

int32_t quantize_nvfp4_g16(const uint16_t *x, int64_t T, int64_t N, uint8_t *packed,
                           uint8_t *scales);

}  // namespace tandem

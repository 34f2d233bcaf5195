/* The C ABI between Tandem's Python side and a native kernel library.
 *
 * A library exports exactly one symbol, tandem_get_api. It hands out a table of function
 * pointers, so that a library can grow without breaking a caller that was built earlier:
 *
 *   - `major` changes when an existing entry changes meaning; a library that does not serve the
 *     requested major returns NULL.
 *   - `minor` changes when entries are appended; `size` is the size in bytes of the library's own
 *     table. A caller uses an entry only when it lies wholly inside `size`.
 *
 * Rules for every kernel entry:
 *
 *   - Tensors are dense and row-major. T counts rows; T = 0 is legal and touches nothing.
 *   - Pointers are aligned to their element (bf16: 2 bytes, f32: 4 bytes); this is checked.
 *     A pointer may be NULL only when T is 0.
 *   - Inputs are read only. Outputs are written completely and nothing beyond them is written.
 *     Outputs must not overlap inputs or each other; this is not checked.
 *   - The result of a row depends on that row and the shared operands only: not on T, on the
 *     neighbouring rows, on the number of threads or on the instruction set that was picked.
 *   - Nothing is allocated, thrown, printed or kept between calls. Calls may run concurrently.
 *   - On any status but TANDEM_OK the outputs are untouched.
 *
 * Number formats:
 *
 *   bf16    upper half of an IEEE binary32, given as uint16_t.
 *   e4m3    sign, 4 exponent bits (bias 7), 3 mantissa bits; 0x7f and 0xff are NaN, no infinity,
 *           largest finite value 448, smallest subnormal 2^-9.
 *   e2m1    sign, 2 exponent bits (bias 1), 1 mantissa bit: 0 0.5 1 1.5 2 3 4 6 and negatives.
 *           Two codes a byte, the even channel in the low nibble.
 *   ue8m0   one unsigned exponent byte b: 2^(b - 127); 255 is NaN.
 *
 * Rounding of values is to nearest, ties to the even code, saturating at the largest finite value.
 * An infinity saturates too; it makes a power-of-two scale 2^127. */
#ifndef TANDEM_H
#define TANDEM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_ABI_MAJOR 1
#define TANDEM_ABI_MINOR 0

/* Status codes of kernel entries. */
enum {
  TANDEM_OK = 0,
  TANDEM_NULL_POINTER = 1, /* a tensor pointer is NULL though T > 0 */
  TANDEM_MISALIGNED = 2,   /* a tensor pointer is not aligned to its element */
  TANDEM_BAD_SHAPE = 3,    /* a dimension is negative, zero where it may not be, or not a multiple
                              of the group size */
  TANDEM_BAD_VALUE = 4     /* a scalar argument is outside its range */
};

/* Element type of an activation given to the fp8 quantisers. */
enum { TANDEM_BF16 = 0, TANDEM_F32 = 1 };

typedef struct tandem_api {
  uint32_t size;     /* sizeof(tandem_api) in the library */
  uint32_t major;    /* TANDEM_ABI_MAJOR of the library */
  uint32_t minor;    /* TANDEM_ABI_MINOR of the library */
  uint32_t parallel; /* 1 when large calls are split over OpenMP threads, else 0 */

  /* Name of the instruction set whose code runs on this machine; static storage. */
  const char *(*isa)(void);

  /* English text of a status code, never NULL; static storage. */
  const char *(*status_string)(int32_t status);

  /* Mixing coefficients of the multi-stream residual, one set a row.
   *
   *   trunk  bf16 [T, m, H]          residual streams, flattened to K = m * H values a row
   *   fn     f32  [m * m + 2m, K]    projection, rows: m for pre, m for post, m * m for comb
   *   base   f32  [m * m + 2m]       offsets in the same order
   *   scale  f32  [3]                factors of the pre, post and comb parts
   *   pre    f32  [T, m]             out: sigmoid(mix * scale[0] + base) + hc_eps
   *   post   f32  [T, m]             out: 2 * sigmoid(mix * scale[1] + base)
   *   comb   f32  [T, m, m]          out: Sinkhorn-normalised softmax over the last dimension
   *
   * mix = (fn . x) / sqrt(mean(x^2) + norm_eps) with the mean over all K values.
   * comb is softmax + hc_eps, then divided by (column sums + hc_eps), then iters - 1 times by
   * (row sums + hc_eps) and by (column sums + hc_eps).
   *
   * All arithmetic is f32 without fused multiply-add. A sum over K runs in 16 lanes, lane l
   * adding k = l, l + 16, ... in order; the lanes are then added as a tree, halves first
   * (l with l + 8, + 4, + 2, + 1). Sums over m run in index order.
   * NaN in a row of trunk makes that row's three outputs NaN and no other's.
   * Ranges: 1 <= m <= 8, H >= 1, iters >= 1, norm_eps >= 0, hc_eps >= 0. */
  int32_t (*hc_mix)(const uint16_t *trunk, const float *fn, const float *base, const float *scale,
                    int64_t T, int64_t m, int64_t H, float norm_eps, float hc_eps, int32_t iters,
                    float *pre, float *post, float *comb);

  /* e4m3 codes with one ue8m0 scale for every 32 channels.
   *
   *   x       bf16 or f32 [T, N]     by x_dtype, TANDEM_BF16 or TANDEM_F32; N a multiple of 32
   *   codes   u8 [T, N]              out
   *   scales  u8 [T, N / 32]         out
   *
   * With a = max(max|x|, 1e-4) over the group, the scale is the least power of two s with
   * a <= 448 s. The code is e4m3(x / s); the sign of zero is kept.
   * A group that holds a NaN becomes 32 codes 0x7f and scale 255. */
  int32_t (*quantize_fp8_g32)(const void *x, int32_t x_dtype, int64_t T, int64_t N, uint8_t *codes,
                              uint8_t *scales);

  /* As quantize_fp8_g32, but with the values that the codes represent instead of the codes:
   * y f32 [T, N] = decode(code) * s, rounded once to f32 (inexact only at the ends of the f32
   * range). A group that holds a NaN becomes 32 NaN and scale 255. */
  int32_t (*fake_quant_fp8_g32)(const void *x, int32_t x_dtype, int64_t T, int64_t N, float *y,
                                uint8_t *scales);

  /* e2m1 codes with one ue8m0 scale for every 32 channels (index keys and queries).
   *
   *   x       bf16 [T, N]            N a multiple of 32
   *   packed  u8 [T, N / 2]          out
   *   scales  u8 [T, N / 32]         out
   *
   * With a = max(max|x|, 6 * 2^-126) over the group, the scale is the least power of two s with
   * a <= 6 s. The code is e2m1(x / s); whatever rounds to zero gets code 0, never 8.
   * A group that holds a NaN becomes codes 0 and scale 255, and so decodes to NaN. */
  int32_t (*quantize_fp4_g32)(const uint16_t *x, int64_t T, int64_t N, uint8_t *packed,
                              uint8_t *scales);

  /* e2m1 codes with one e4m3 scale for every 16 channels (the main key-value cache).
   *
   *   x       bf16 [T, N]            N a multiple of 16
   *   packed  u8 [T, N / 2]          out
   *   scales  u8 [T, N / 16]         out
   *
   * With a = max(max|x|, 6 * 2^-9) over the group, the scale is s = e4m3(min(a / 6, 448)) and the
   * code e2m1(x / s) with that rounded s; both divisions are true f32 divisions. Whatever rounds
   * to zero gets code 0, never 8.
   * A group that holds a NaN becomes codes 0 and scale 0x7f, and so decodes to NaN. */
  int32_t (*quantize_nvfp4_g16)(const uint16_t *x, int64_t T, int64_t N, uint8_t *packed,
                                uint8_t *scales);
} tandem_api;

/* The library's table for an ABI major, or NULL when it does not serve that major. The table is
 * constant and lives as long as the library is loaded. */
const tandem_api *tandem_get_api(uint32_t major);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_H */

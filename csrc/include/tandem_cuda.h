/* The C ABI between Tandem's Python side and its kernels for NVIDIA SM100.
 *
 * A library exports exactly one symbol, tandem_cuda_get_api, which hands out a table of function
 * pointers under the rules of tandem.h for `major`, `minor` and `size`.  Number formats and status
 * codes 0 to 4 are those of tandem.h.
 *
 * Rules for every entry that queues work:
 *
 *   - It acts on the current device of the calling thread and on the stream that it is given. It
 *     allocates nothing, waits for nothing and reads no device memory on the host, so it can be
 *     captured into a graph; call it once outside of a capture first, because the driver loads a
 *     kernel at its first launch.
 *   - Memory that it needs is the caller's `workspace`, device memory aligned to 256 bytes, of the
 *     size that the entry's size query gives for the same arguments; it may be used again by work
 *     queued later on the stream. Size queries need no device.
 *   - Tensors are dense and row-major device memory. T counts rows; T = 0 is legal and queues
 *     nothing. Codes, values and outputs are aligned to 16 bytes, codes of mxfp4 to 32, scales to
 *     128. Inputs are read only.
 *   - Outputs are written completely and nothing beyond them is written.
 *   - A row's result does not depend on T, on other rows or on what lies in unused memory.
 *   - Without a driver, without a device and on a device that the kernels are not for, every entry
 *     that queues work returns TANDEM_NO_DRIVER, TANDEM_NO_DEVICE or TANDEM_WRONG_DEVICE and does
 *     nothing else.
 *
 * Scales of mxfp8 and mxfp4 operands: ue8m0, one for 32 elements of a row, in tiles of 128 rows x 4
 * groups, 512 bytes each, the tiles of a band of 128 rows one after another. Within a tile the byte
 * of (row r, group g) is at (r mod 32) * 16 + (r div 32) * 4 + g. Filler groups of a row hold 127,
 * filler rows anything. A weight of fp8_block32 is an mxfp8 operand once each block's byte stands
 * in all of its rows. */
#ifndef TANDEM_CUDA_H
#define TANDEM_CUDA_H

#include "tandem.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_CUDA_ABI_MAJOR 1
#define TANDEM_CUDA_ABI_MINOR 0

enum {
  TANDEM_NO_DRIVER = 16,       /* there is no driver, or it is older than the library needs */
  TANDEM_NO_DEVICE = 17,       /* the driver shows no device */
  TANDEM_WRONG_DEVICE = 18,    /* the current device is not of compute capability 10.0 */
  TANDEM_SMALL_WORKSPACE = 19, /* the workspace is smaller than the size query says */
  TANDEM_LAUNCH_FAILED = 20    /* the driver refused a launch */
};

/* A kernel for tables: its tile (outputs x tokens, depth of a step), the multiprocessors that share
 * one, shared memory of a block, and which products it is for. */
typedef struct tandem_cuda_kernel {
  const char *name;
  const char *use;
  int32_t outputs;
  int32_t tokens;
  int32_t depth;
  int32_t multiprocessors;
  int32_t shared_bytes;
} tandem_cuda_kernel;

typedef struct tandem_cuda_api {
  uint32_t size;
  uint32_t major;
  uint32_t minor;
  uint32_t reserved;

  /* English text of a status code, never NULL; static storage. */
  const char *(*status_string)(int32_t status);

  /* TANDEM_OK where the current device can run the kernels, else why not. */
  int32_t (*device_status)(void);

  /* The kernels by index from 0; TANDEM_BAD_VALUE past the last. */
  int32_t (*kernel_facts)(int32_t index, tandem_cuda_kernel *facts);

  /* out [T, N] = x [T, K] . w [N, K]^T, f32 accumulation, rounded once.
   *
   *   x_format    TANDEM_BF16 or TANDEM_MXFP8
   *   w_format    TANDEM_BF16, TANDEM_F32, TANDEM_MXFP8 or TANDEM_MXFP4
   *   out_format  TANDEM_BF16 or TANDEM_F32
   *
   * K is a multiple of 32 where x or w has scales. */
  int32_t (*linear_workspace)(int32_t x_format, int32_t w_format, int32_t out_format, int64_t T,
                              int64_t N, int64_t K, int64_t *bytes);
  int32_t (*linear)(void *stream, const void *x, const uint8_t *x_scale, int32_t x_format,
                    const void *w, const uint8_t *w_scale, int32_t w_format, int64_t T, int64_t N,
                    int64_t K, void *out, int32_t out_format, void *workspace,
                    int64_t workspace_bytes);
  /* Name of the kernel that `linear` runs, for tables; static storage, "" where the arguments are
   * not legal. */
  const char *(*linear_kernel)(int32_t x_format, int32_t w_format, int32_t out_format, int64_t T,
                               int64_t N, int64_t K);

  /* out bf16 [T, G * N]: channels g * K .. of x mxfp8 [T, G * K] times w[g], w mxfp8 [G, N, K],
   * scales packed for each matrix. */
  int32_t (*group_linear)(void *stream, const void *x, const uint8_t *x_scale, const void *w,
                          const uint8_t *w_scale, int64_t T, int64_t G, int64_t N, int64_t K,
                          void *out);
  const char *(*group_linear_kernel)(int64_t T, int64_t G, int64_t N, int64_t K);

  /* out bf16 [T, N]: row t of x mxfp8 [T, K] times w[e], where e is the first expert with t <
   * ends[e]; ends int32 [E] are inclusive prefix sums of the rows of each expert, of which any may
   * be empty.  Rows from ends[E - 1] on are zero.  w [E, N, K] is TANDEM_MXFP4 or TANDEM_MXFP8,
   * scales packed for each matrix. */
  int32_t (*grouped_linear_workspace)(int32_t w_format, int64_t T, int64_t E, int64_t N, int64_t K,
                                      int64_t *bytes);
  int32_t (*grouped_linear)(void *stream, const void *x, const uint8_t *x_scale, const void *w,
                            const uint8_t *w_scale, int32_t w_format, const int32_t *ends,
                            int64_t T, int64_t E, int64_t N, int64_t K, void *out, void *workspace,
                            int64_t workspace_bytes);
  const char *(*grouped_linear_kernel)(int32_t w_format, int64_t T, int64_t E, int64_t N,
                                       int64_t K);
} tandem_cuda_api;

/* The library's table for an ABI major, or NULL when it does not serve that major. */
const tandem_cuda_api *tandem_cuda_get_api(uint32_t major);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_CUDA_H */

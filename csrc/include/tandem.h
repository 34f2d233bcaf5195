/* The C ABI between Tandem's Python side and a native kernel library.
 *
 * A library exports exactly one symbol, tandem_get_api. It hands out a table, so that a library can
 * grow without breaking a caller that was built earlier:
 *
 *   - `major` changes when something here changes meaning; a library that does not serve the
 *     requested major returns NULL.
 *   - `minor` changes when fields are appended; `size` is the size in bytes of the library's own
 *     table. A caller uses a field only when it lies wholly inside `size`.
 *
 * Every kernel is an entry with one form: it takes its arguments as 8-byte words, in order. So a
 * step can be recorded as a flat list of calls and replayed by one call, without Python between.
 * `signature` tells what an entry takes, one letter an argument:
 *
 *   pointers, NULL where the entry's comment allows it (the word is the address):
 *     b  uint8_t    h  uint16_t (bf16)    i  int32_t    u  uint32_t    l  int64_t    f  float
 *     d  double     v  elements of a format that is another argument
 *   numbers:
 *     I  int64_t    F  double
 *
 * What the arguments mean stands in the entry's own file, csrc/cpu/ops/<entry>.cpp. For all of
 * them:
 *
 *   - Tensors are dense and row-major. T counts rows; T = 0 is legal and touches nothing.
 *   - Inputs are read only. Outputs are written completely and nothing beyond them is written.
 *     Outputs must not overlap inputs or each other unless the entry says so; this is not checked.
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
 *   mxfp8   codes e4m3, a ue8m0 scale for every 32 channels of a row.
 *   mxfp4   codes e2m1, a ue8m0 scale for every 32 channels of a row.
 *   nvfp4   codes e2m1, an e4m3 scale for every 16 channels of a row.
 *   fp8_block32  codes e4m3, a ue8m0 scale for every block of 32 rows by 32 columns.
 *
 * Rounding of values is to nearest, ties to the even code, saturating at the largest finite value.
 * An infinity saturates too; it makes a power-of-two scale 2^127. */
#ifndef TANDEM_H
#define TANDEM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_ABI_MAJOR 2
#define TANDEM_ABI_MINOR 0

/* Status codes of entries. */
enum {
  TANDEM_OK = 0,
  TANDEM_NULL_POINTER = 1, /* a pointer is NULL that may not be */
  TANDEM_MISALIGNED = 2,   /* a pointer is not aligned as the library needs it */
  TANDEM_BAD_SHAPE = 3,    /* a dimension is negative, zero where it may not be, or not a multiple
                              of the group size */
  TANDEM_BAD_VALUE = 4,    /* a scalar argument is outside its range */
  TANDEM_BAD_INDEX = 5     /* an index in an array is out of range */
};

/* Number formats where an entry takes one as an argument. */
enum {
  TANDEM_BF16 = 0,
  TANDEM_F32 = 1,
  TANDEM_MXFP8 = 2,
  TANDEM_MXFP4 = 3,
  TANDEM_NVFP4 = 4,
  TANDEM_FP8_BLOCK32 = 5
};

/* words: as many 8-byte words as the signature has letters, at any alignment. */
typedef int32_t (*tandem_entry_fn)(const uint8_t *words);

typedef struct tandem_entry {
  const char *name; /* NULL ends the list */
  const char *signature;
  tandem_entry_fn run;
} tandem_entry;

/* The kernels compiled for an instruction set. */
typedef struct tandem_set {
  const char *name;
  const tandem_entry *entries;
  int64_t usable; /* 1 when this machine has the set */
} tandem_set;

typedef struct tandem_api {
  uint32_t size;     /* sizeof(tandem_api) in the library */
  uint32_t major;    /* TANDEM_ABI_MAJOR of the library */
  uint32_t minor;    /* TANDEM_ABI_MINOR of the library */
  uint32_t parallel; /* 1 when large calls are split over OpenMP threads, else 0 */

  /* All instruction sets, best first, ended by one without a name. The first usable one is meant
   * to be used; all give the same bits. Static storage. */
  const tandem_set *sets;

  /* English text of a status code, never NULL; static storage. */
  const char *(*status_string)(int32_t status);

  /* Run recorded calls in order: call i is entries[i] with the words at words + offsets[i].
   * Stops at the first status that is not TANDEM_OK, which it returns, and sets *failed to i. */
  int32_t (*replay)(const tandem_entry_fn *entries, const int64_t *offsets, const uint8_t *words,
                    int64_t count, int64_t *failed);
} tandem_api;

/* The library's table for an ABI major, or NULL when it does not serve that major. The table is
 * constant and lives as long as the library is loaded. */
const tandem_api *tandem_get_api(uint32_t major);

#ifdef __cplusplus
}
#endif

#endif /* TANDEM_H */

/* The C ABI between Tandem's Python side and its kernels for Ascend 950 (dav-3510).
 *
 * One library has all entries, by name: tandem_ascend_<op>, declared in csrc/ascend/<op>.h. They
 * are plain C; the library hands out its own declarations as text, so nothing is written twice.
 *
 * Rules for every entry that queues work:
 *
 *   - It acts on the current device of the calling thread and on the stream that it is given. It
 * allocates nothing, waits for nothing and reads no device memory on the host.
 *   - Tensors are dense and row-major device memory. Counts of rows may be 0: nothing is queued
 * then.
 *   - Outputs are written completely and nothing beyond them is written.
 *   - A row's result does not depend on the number of rows, on other rows or on what lies in unused
 * memory.
 *
 * libtandem_ascend.so runs on a device. libtandem_ascend_emulated.so runs the same kernels on the
 * host, under csrc/ascend/emulation; there `stream` is NULL and pointers are host memory that was
 * registered. */
#ifndef TANDEM_ASCEND_H
#define TANDEM_ASCEND_H

#include <stdint.h>

#ifdef __cplusplus
#define TANDEM_API extern "C" __attribute__((visibility("default")))
#else
#define TANDEM_API
#endif

enum {
  TANDEM_OK = 0,
  TANDEM_BAD_VALUE = 1,      /* an argument is out of the range that the declaration states */
  TANDEM_TOO_LARGE = 2,      /* a row or a tile does not fit the buffers of a core */
  TANDEM_LAUNCH_FAILED = 3,  /* the runtime refused a launch */
  TANDEM_EMULATION_FAULT = 4 /* the emulation found a fault: tandem_ascend_last_fault says which */
};

/* What kernels tile by; read once from the device. */
typedef struct tandem_ascend_device {
  int32_t cube_cores;
  int32_t vector_cores;
  int64_t ub_bytes;
  int64_t l1_bytes;
  int64_t l0a_bytes;
  int64_t l0b_bytes;
  int64_t l0c_bytes;
} tandem_ascend_device;

/* Fill in the facts of the current device. */
TANDEM_API int32_t tandem_ascend_device_facts(tandem_ascend_device *device);

/* English text of a status code, never NULL; static storage. */
TANDEM_API const char *tandem_ascend_status_string(int32_t status);

/* The declarations of all entries, for cffi; static storage. */
TANDEM_API const char *tandem_ascend_declarations(void);

/* Whether this is the emulation. The entries below do nothing on a device. */
TANDEM_API int32_t tandem_ascend_emulated(void);

/* "name: text" of the last fault, "" where there was none; valid until the next one. */
TANDEM_API const char *tandem_ascend_last_fault(void);

/* Global memory that kernels may touch, each range until it is unregistered as often as it was
 * registered. */
TANDEM_API int32_t tandem_ascend_register(const void *pointer, int64_t bytes);
TANDEM_API int32_t tandem_ascend_unregister(const void *pointer, int64_t bytes);
TANDEM_API void tandem_ascend_forget_all(void);

#endif /* TANDEM_ASCEND_H */

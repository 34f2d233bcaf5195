/* A stand-in for the vendor's runtime, on host memory, with which torch-npu loads where no NPU is.
 *
 * It has the functions whose results torch-npu uses, under their documented names; of all others
 * that torch-npu is linked against, tests/support/acl_stub.py makes functions that succeed and do
 * nothing.  Streams run at once.  What is asked of it is written down, for tests to read:
 * acl_stub_log and acl_stub_forget.  Nothing here computes: ops of torch fail, kernels do not
 * exist. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char text[1 << 16];
static size_t used = 0;
static _Thread_local int32_t device = 0;
static intptr_t handles = 100;
static void *capturing = NULL; /* the stream that captures */
static int refuse_memory = 0;

static void note(const char *format, ...) {
  va_list list;
  va_start(list, format);
  if (used < sizeof text - 200) used += (size_t)vsnprintf(text + used, 200, format, list);
  va_end(list);
}

const char *acl_stub_log(void) { return text; }
void acl_stub_forget(void) { text[used = 0] = 0; }
void acl_stub_refuse_memory(int on) { refuse_memory = on; }

int aclInit(const char *path) { return (void)path, 0; }
const char *aclrtGetSocName(void) {
  return getenv("ACL_STUB_SOC") ? getenv("ACL_STUB_SOC") : "Ascend950PR_9599";
}
const char *aclGetRecentErrMsg(void) { return "the stub was told to refuse"; }

/* devices */
int aclrtGetDeviceCount(uint32_t *count) { return *count = 2, 0; }
int aclrtSetDevice(int32_t index) { return device = index, 0; }
int aclrtGetDevice(int32_t *index) { return *index = device, 0; }
int aclrtGetCurrentContext(void **context) { return *context = (void *)(intptr_t)(device + 1), 0; }
int aclrtSetCurrentContext(void *context) { return device = (int32_t)(intptr_t)context - 1, 0; }
int aclrtSetDeviceSatMode(int mode) { return (void)mode, 0; }
int aclrtGetSysParamOpt(int option, int64_t *value) { return (void)option, *value = 0, 0; }
int aclrtCreateContext(void **context, int32_t index) {
  return *context = (void *)(intptr_t)(index + 1), 0;
}

/* memory */
static int allocate(void **pointer, size_t size, const char *name) {
  if (refuse_memory) return 207001;
  note("%s %zu\n", name, size);
  return posix_memalign(pointer, 512, size + 512) ? 207001 : 0;
}
int aclrtMalloc(void **pointer, size_t size, int policy) {
  return (void)policy, allocate(pointer, size, "malloc");
}
int aclrtMallocAlign32(void **pointer, size_t size, int policy) {
  return aclrtMalloc(pointer, size, policy);
}
int aclrtMallocHost(void **pointer, size_t size) { return allocate(pointer, size, "malloc host"); }
int aclrtFree(void *pointer) { return free(pointer), 0; }
int aclrtFreeHost(void *pointer) { return free(pointer), 0; }
int aclrtGetMemInfo(int kind, size_t *left, size_t *total) {
  return (void)kind, *left = 3 << 20, *total = 4 << 20, 0;
}
int aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int kind) {
  if (size > room) return 1;
  note("copy %zu kind %d\n", size, kind);
  return memcpy(to, from, size), 0;
}
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int kind, void *stream) {
  if (size > room) return 1;
  note("copy %zu kind %d stream %ld\n", size, kind, (long)(intptr_t)stream);
  return memcpy(to, from, size), 0;
}
int aclrtMemset(void *to, size_t room, int32_t value, size_t size) {
  return size > room || !memset(to, value, size);
}
int aclrtHostRegister(void *pointer, uint64_t size, int kind, void **seen) {
  if (refuse_memory) return 207001;
  note("register %lu kind %d\n", (unsigned long)size, kind);
  return *seen = pointer, 0;
}
int aclrtHostUnregister(void *pointer) { return (void)pointer, 0; }

/* streams and events */
int aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flag) {
  (void)priority, (void)flag;
  return *stream = (void *)handles++, 0;
}
int aclrtCreateStream(void **stream) { return *stream = (void *)handles++, 0; }
int aclrtSynchronizeStream(void *stream) {
  return note("wait for stream %ld\n", (long)(intptr_t)stream), 0;
}
int aclrtSynchronizeStreamWithTimeout(void *stream, int32_t limit) {
  return (void)limit, aclrtSynchronizeStream(stream);
}
int aclrtSynchronizeDevice(void) { return note("wait for device %d\n", device), 0; }
int aclrtSynchronizeDeviceWithTimeout(int32_t limit) {
  return (void)limit, aclrtSynchronizeDevice();
}
int aclrtCreateEventExWithFlag(void **event, uint32_t flag) {
  return (void)flag, *event = (void *)handles++, 0;
}
int aclrtCreateEventWithFlag(void **event, uint32_t flag) {
  return aclrtCreateEventExWithFlag(event, flag);
}
int aclrtRecordEvent(void *event, void *stream) {
  (void)event;
  return note("event on stream %ld\n", (long)(intptr_t)stream), 0;
}
int aclrtQueryEventStatus(void *event, int *status) { return (void)event, *status = 1, 0; }
int aclrtQueryEventWaitStatus(void *event, int *status) { return (void)event, *status = 0, 0; }
int aclrtStreamQuery(void *stream, int *status) { return (void)stream, *status = 0, 0; }

/* capture: 0 none, 1 active */
int aclmdlRICaptureBegin(void *stream, int mode) {
  if (capturing) return 107000;
  return note("capture begins on stream %ld mode %d\n", (long)(intptr_t)(capturing = stream), mode),
         0;
}
int aclmdlRICaptureGetInfo(void *stream, int *status, void **graph) {
  *status = stream && stream == capturing;
  if (graph) *graph = (void *)7;
  return 0;
}
int aclmdlRICaptureEnd(void *stream, void **graph) {
  note("capture ends on stream %ld\n", (long)(intptr_t)stream);
  return capturing = NULL, *graph = (void *)7, 0;
}
int aclmdlRICaptureThreadExchangeMode(int *mode) { return (void)mode, 0; }
int aclmdlRIExecuteAsync(void *graph, void *stream) {
  return note("replay of graph %ld on stream %ld\n", (long)(intptr_t)graph, (long)(intptr_t)stream),
         0;
}
int aclmdlRIDestroy(void *graph) { return (void)graph, 0; }

/* looked up by name; nothing is wanted but that they are there */
int aclrtSetOpExecuteTimeOut(uint32_t limit) { return (void)limit, 0; }
int aclrtSetOpWaitTimeout(uint32_t limit) { return (void)limit, 0; }
int aclrtDestroyStreamForce(void *stream) { return (void)stream, 0; }

/* collectives */
int HcclGetRootInfo(void *info) { return (void)info, 0; }
int HcclCommInitRootInfoConfig(uint32_t ranks, const void *info, uint32_t rank, const void *config,
                               void **group) {
  (void)info, (void)config;
  return note("join as %u of %u\n", rank, ranks), *group = (void *)9, 0;
}
int HcclGetCommAsyncError(void *group, int *error) { return (void)group, *error = 0, 0; }
int HcclCommDestroy(void *group) { return note("leave group %ld\n", (long)(intptr_t)group), 0; }
int HcclAllReduce(void *from, void *to, uint64_t count, int type, int op, void *group,
                  void *stream) {
  (void)from, (void)to, (void)type, (void)op, (void)stream;
  return note("all reduce of %lu in group %ld\n", (unsigned long)count, (long)(intptr_t)group), 0;
}

/* ops: torch-npu asks for this one before it copies between host and device, and then copies by
 * itself */
int aclnnInplaceCopyGetWorkspaceSize(void *to, const void *from, uint64_t *size, void **executor) {
  return (void)to, (void)from, (void)size, (void)executor, 161002;
}
int aclnnInplaceCopy(void *workspace, uint64_t size, void *executor, void *stream) {
  return (void)workspace, (void)size, (void)executor, (void)stream, 161002;
}

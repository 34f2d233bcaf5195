// What every kernel includes: the documented Ascend C, and the few things that are ours.
//
//   Gm<T>, Ub<T>, L1<T>, L0a<T>, L0b<T>, L0c<T>   pointers into an address space
//   gm_cast<T>(pointer)                           an argument of the C ABI as Gm<T>
//   TANDEM_SHARED                                 of a function: the host calls it, and kernels too
//   TANDEM_LAUNCH(kernel, blocks, stream, ...)    start a kernel; its value is a status code
//   TANDEM_LAUNCH_UB(kernel, blocks, ub, ...)     the same, of a kernel with SIMT functions and so
//   many bytes of UB
//
// The same source is compiled by bisheng for the device and by g++ for the emulation in emulation/.
#pragma once

#include "../include/tandem_ascend.h"

#ifdef TANDEM_ASCEND_EMULATION
#include "emulation/device.h"
#else
#include "kernel_operator.h"
#include "simt_api/asc_bf16.h"
#include "simt_api/asc_simt.h"
#include "simt_api/common_functions.h"
#include "simt_api/device_atomic_functions.h"
#include "simt_api/device_functions.h"
#include "simt_api/device_sync_functions.h"
#include "simt_api/device_warp_functions.h"
#include "simt_api/math_functions.h"
#include "simt_api/vector_functions.h"

template <class T>
using Gm = __gm__ T *;
template <class T>
using Ub = __ubuf__ T *;
template <class T>
using L1 = __cbuf__ T *;
template <class T>
using L0a = __ca__ T *;
template <class T>
using L0b = __cb__ T *;
template <class T>
using L0c = __cc__ T *;

template <class T, class P>
inline Gm<T> gm_cast(const P *pointer) {
  return (Gm<T>)pointer;
}

#define TANDEM_SHARED __host__ __aicore__

#define TANDEM_LAUNCH(kernel, blocks, stream, ...) \
  TANDEM_LAUNCH_UB(kernel, blocks, 0, stream, __VA_ARGS__)
#define TANDEM_LAUNCH_UB(kernel, blocks, ub, stream, ...) \
  (kernel<<<uint32_t(blocks), uint32_t(ub), stream>>>(__VA_ARGS__), TANDEM_OK)
#endif

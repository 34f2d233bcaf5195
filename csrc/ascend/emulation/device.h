// What csrc/ascend/kernel.h includes when kernels are compiled for the emulation: all that is
// modelled.
#pragma once

#include "control.h"
#include "copy.h"
#include "core.h"
#include "cube.h"
#include "queue.h"
#include "registers.h"
#include "simt.h"
#include "simt_atomic.h"
#include "simt_math.h"
#include "simt_warp.h"
#include "sync.h"
#include "tensor.h"
#include "vector.h"

// Qualifiers of functions. On which cores a kernel runs is told by the section that it lies in.
#define __global__
#define __aicore__
#define __vector__ __attribute__((section("tandem_kernels_vector"), noinline))
#define __cube__ __attribute__((section("tandem_kernels_cube"), noinline))
#define __mix__(cube, vector) \
  __attribute__((section("tandem_kernels_mix_" #cube "_" #vector), noinline))
#define __simd_vf__
#define __simd_callee__
#define __simt_vf__
#define __simt_callee__
#define __callee__
#define __launch_bounds__(threads)
#define TANDEM_SHARED

namespace tandem::emulation {

// `ub`: bytes of UB that the kernel asks for, 0 where it has no SIMT function with buffers.
template <class Body>
int32_t launch_kernel(const void *kernel, const char *name, int64_t blocks, uint32_t ub,
                      Body &&body) {
  if (ub > kSimtUb) return TANDEM_TOO_LARGE;
  const auto call = [](void *context) {
    (*static_cast<std::remove_reference_t<Body> *>(context))();
  };
  declared_ub = ub;
  return launch(kernel, name, static_cast<uint32_t>(blocks), call, &body);
}

}  // namespace tandem::emulation

#define TANDEM_LAUNCH_UB(kernel, blocks, ub, stream, ...)                                       \
  (static_cast<void>(stream),                                                                   \
   ::tandem::emulation::launch_kernel(reinterpret_cast<const void *>(&kernel), #kernel, blocks, \
                                      ub, [&] { kernel(__VA_ARGS__); }))
#define TANDEM_LAUNCH(kernel, blocks, stream, ...) \
  TANDEM_LAUNCH_UB(kernel, blocks, 0, stream, __VA_ARGS__)

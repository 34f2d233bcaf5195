// Shared pieces of the CPU kernels: function multiversioning, bit casts and argument checks.
#pragma once

#include <cstdint>
#include <cstring>

#include "tandem.h"

// Helpers are inlined into the multiversioned function that calls them, so that they are compiled
// once for every instruction set too.
#define TANDEM_INLINE inline __attribute__((always_inline))

// One source, several instruction sets, picked when the library is loaded. All versions give the
// same bits: the sources fix every summation order and the build forbids contraction to fused
// multiply-add. TANDEM_BASELINE_ONLY builds the portable version alone; the tests compare the two.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(TANDEM_BASELINE_ONLY)
#define TANDEM_MULTIVERSION 1
#define TANDEM_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define TANDEM_MULTIVERSION 0
#define TANDEM_CLONES
#endif

namespace tandem {

TANDEM_INLINE uint32_t bits_of(float v) {
  uint32_t b;
  std::memcpy(&b, &v, sizeof b);
  return b;
}

TANDEM_INLINE float float_of(uint32_t b) {
  float v;
  std::memcpy(&v, &b, sizeof v);
  return v;
}

template <typename T>
bool misaligned(const T *p) {
  return reinterpret_cast<uintptr_t>(p) % alignof(T) != 0;
}

// First problem among tensor pointers of any element types, or TANDEM_OK.
template <typename... T>
int32_t check_pointers(const T *...p) {
  if (((p == nullptr) || ...)) return TANDEM_NULL_POINTER;
  if ((misaligned(p) || ...)) return TANDEM_MISALIGNED;
  return TANDEM_OK;
}

}  // namespace tandem

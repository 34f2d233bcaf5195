// Vectors as wide as the machine's registers. Of wider ones (vec.h) compilers take comparisons
// apart into single elements, and keep what should be in registers in memory.
#pragma once

#include <cstdint>
#include <cstring>

#include "vec.h"

namespace tandem::TANDEM_ISA {

#if defined(__AVX512BW__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX2__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif

typedef int8_t RegI8 __attribute__((vector_size(kRegisterBytes)));
typedef int16_t RegI16 __attribute__((vector_size(kRegisterBytes)));
typedef int32_t RegI32 __attribute__((vector_size(kRegisterBytes)));
typedef int64_t RegI64 __attribute__((vector_size(kRegisterBytes)));
typedef float RegF32 __attribute__((vector_size(kRegisterBytes)));
typedef double RegF64 __attribute__((vector_size(2 * kRegisterBytes)));  // as many as of the others

template <typename R>
TANDEM_INLINE R load_as(const void *p) {
  R v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

}  // namespace tandem::TANDEM_ISA

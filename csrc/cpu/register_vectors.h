// Vectors as wide as the machine's registers, for code that compares: compilers take comparisons of
// wider ones (vec.h) apart into single elements.
#pragma once

#include <cstdint>

namespace tandem::TANDEM_ISA {

#if defined(__AVX512BW__)
constexpr int kRegisterBytes = 64;  // bytes
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

}  // namespace tandem::TANDEM_ISA

// Arithmetic on whole tensors in UB, on the first `count` elements: the few operations whose result
// is exact.
//
// Kernels compute in registers; sums and elementary functions on tensors are left out, because the
// documentation states neither their order nor their error.
#pragma once

#include "tensor.h"

namespace tandem::emulation {

constexpr Operand kVectorSource{"vector operation, source", Access::read, PIPE_V, 32};
constexpr Operand kVectorResult{"vector operation, destination", Access::write, PIPE_V, 32};

template <class T>
T *vector_operand(const AscendC::LocalTensor<T> &tensor, int32_t count, const Operand &operand) {
  static_assert(sizeof(T) == 4, "tensors of float and int32_t");
  if (count < 0)
    fail("bad-parameter", "count from 0 on", "a vector operation on %d elements", count);
  if (tensor.place().space() != Space::UB)
    fail("not-modelled", "compute in UB", "a vector operation in %s",
         space_name(tensor.place().space()));
  return reinterpret_cast<T *>(
      touch(tensor.place(), 0, static_cast<uint64_t>(count) * sizeof(T), operand));
}

}  // namespace tandem::emulation

namespace AscendC {

template <class T>
inline void Duplicate(const LocalTensor<T> &dst, const T &value, const int32_t &count) {
  T *result = emulation::vector_operand(dst, count, emulation::kVectorResult);
  for (int32_t i = 0; i < count; ++i) result[i] = value;
}

#define TANDEM_PAIRWISE(name, expression)                                               \
  template <class T>                                                                    \
  inline void name(const LocalTensor<T> &dst, const LocalTensor<T> &src0,               \
                   const LocalTensor<T> &src1, const int32_t &count) {                  \
    const T *first = emulation::vector_operand(src0, count, emulation::kVectorSource);  \
    const T *second = emulation::vector_operand(src1, count, emulation::kVectorSource); \
    T *result = emulation::vector_operand(dst, count, emulation::kVectorResult);        \
    for (int32_t i = 0; i < count; ++i) {                                               \
      const T a = first[i], b = second[i];                                              \
      result[i] = static_cast<T>(expression);                                           \
    }                                                                                   \
  }

#define TANDEM_WITH_SCALAR(name, expression)                                              \
  template <class T>                                                                      \
  inline void name(const LocalTensor<T> &dst, const LocalTensor<T> &src, const T &scalar, \
                   const int32_t &count) {                                                \
    const T *first = emulation::vector_operand(src, count, emulation::kVectorSource);     \
    T *result = emulation::vector_operand(dst, count, emulation::kVectorResult);          \
    for (int32_t i = 0; i < count; ++i) {                                                 \
      const T a = first[i], b = scalar;                                                   \
      result[i] = static_cast<T>(expression);                                             \
    }                                                                                     \
  }

TANDEM_PAIRWISE(Add, a + b)
TANDEM_PAIRWISE(Sub, a - b)
TANDEM_PAIRWISE(Mul, a *b)
TANDEM_WITH_SCALAR(Adds, a + b)
TANDEM_WITH_SCALAR(Muls, a *b)

#undef TANDEM_PAIRWISE
#undef TANDEM_WITH_SCALAR

}  // namespace AscendC

// Arithmetic of the register-level vector API.
//
// Written from the pages under "基础算术" and "复合计算" and the appendix
// "Reg矢量计算接口精度标准汇总". Addition, multiplication and fused multiply-add round once
// (documented: 0 ulp). Division, roots, exponentials and logarithms are documented to within one
// unit in the last place; they are rounded correctly here, and flush subnormal numbers unless a
// mode that keeps them is chosen.
#pragma once

#include "register_lanes.h"

namespace AscendC::Reg {

enum class DivAlgo {
  INTRINSIC = 0,
  DIFF_COMPENSATION,
  PRECISION_1ULP_FTZ_TRUE,
  PRECISION_0ULP_FTZ_TRUE,
  PRECISION_0ULP_FTZ_FALSE,
  PRECISION_1ULP_FTZ_FALSE,
};  // clang-format skip
struct DivSpecificMode {
  MaskMergeMode mrgMode = MaskMergeMode::ZEROING;
  bool precisionMode = false;
  DivAlgo algo = DivAlgo::INTRINSIC;
};
enum class ExpAlgo { INTRINSIC = 0, PRECISION_1ULP_FTZ_TRUE, PRECISION_1ULP_FTZ_FALSE };
struct ExpSpecificMode {
  MaskMergeMode mrgMode = MaskMergeMode::ZEROING;
  ExpAlgo algo = ExpAlgo::INTRINSIC;
};

}  // namespace AscendC::Reg

namespace tandem::emulation {

// Division by zero is not documented: a fault. The one quotient that does not fit keeps its low
// bits.
template <typename T>
T divided(T a, T b) {
  if (b == 0)
    fail("undefined-result", "do not select lanes whose divisor is 0", "Div divides integers by 0");
  return b == T(-1) && std::is_signed_v<T> ? T(0 - uint64_t(a)) : T(a / b);
}

// dst = a * b + c with one rounding; integers keep the low bits.
template <typename T>
void fused(const char *what, RegTensor<T> &dst, const RegTensor<T> &left, const RegTensor<T> &right,
           const RegTensor<T> &addend, const MaskReg &mask) {
  const auto a = lanes_of<T>(left);
  const auto b = lanes_of<T>(right);
  const auto c = lanes_of<T>(addend);
  const auto term = [&](int i) {
    if constexpr (std::is_same_v<T, float>)
      return std::fma(a[i], b[i], c[i]);
    else
      return wrapped_add(wrapped_multiply(a[i], b[i]), c[i]);
  };
  write_selected<T, MaskMergeMode::ZEROING>(what, dst, mask, term, left, right, addend);
}

template <auto mode>
constexpr bool keeps_subnormals() {
  if constexpr (std::is_same_v<decltype(mode), const AscendC::Reg::DivSpecificMode *>)
    return mode->algo == AscendC::Reg::DivAlgo::PRECISION_0ULP_FTZ_FALSE ||
           mode->algo == AscendC::Reg::DivAlgo::PRECISION_1ULP_FTZ_FALSE;
  else if constexpr (std::is_same_v<decltype(mode), const AscendC::Reg::ExpSpecificMode *>)
    return mode->algo == AscendC::Reg::ExpAlgo::PRECISION_1ULP_FTZ_FALSE;
  else {
    static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");
    return false;
  }
}

// Rounded correctly from a result in double.
template <auto mode, typename F>
float elementary(float x, F f) {
  constexpr bool kKeeps = keeps_subnormals<mode>();
  const float result = float(f(double(kKeeps ? x : flushed(x))));
  return kKeeps ? result : flushed(result);
}

}  // namespace tandem::emulation

namespace AscendC::Reg {

#define TANDEM_BINARY(name, f, merging)                                                        \
  template <typename T = DefaultType, MaskMergeMode mode = MaskMergeMode::ZEROING, typename E> \
    requires emulation::Number<E>                                                              \
  void name(RegTensor<E> &dst, RegTensor<E> &left, RegTensor<E> &right, MaskReg &mask) {       \
    emulation::check_type<T, E>();                                                             \
    static_assert(merging || mode == MaskMergeMode::ZEROING,                                   \
                  "not supported by the device: MERGING");                                     \
    emulation::binary<mode>(#name, dst, left, right, mask,                                     \
                            [](E a, E b) { return emulation::f(a, b); });                      \
  }                                                                                            \
  static_assert(true)

TANDEM_BINARY(Add, wrapped_add, true);
TANDEM_BINARY(Sub, wrapped_subtract, false);
TANDEM_BINARY(Max, larger, true);
TANDEM_BINARY(Min, smaller, true);
#undef TANDEM_BINARY

template <typename T = DefaultType, MaskMergeMode mode = MaskMergeMode::ZEROING, typename E>
  requires(emulation::Number<E> && sizeof(E) > 1)
void Mul(RegTensor<E> &dst, RegTensor<E> &left, RegTensor<E> &right, MaskReg &mask) {
  emulation::check_type<T, E>();
  static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");
  emulation::binary<mode>("Mul", dst, left, right, mask,
                          [](E a, E b) { return emulation::wrapped_multiply(a, b); });
}

#define TANDEM_SCALAR(name, f, condition)                                                        \
  template <typename T = DefaultType, typename U = DefaultType,                                  \
            MaskMergeMode mode = MaskMergeMode::ZEROING, typename E, typename V>                 \
    requires(emulation::Number<E> && (condition))                                                \
  void name(RegTensor<E> &dst, RegTensor<E> &src, V scalar, MaskReg &mask) {                     \
    emulation::check_type<T, E>();                                                               \
    static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");       \
    static_assert(std::is_same_v<E, V>, "the scalar has the type of the elements");              \
    emulation::unary<mode>(#name, dst, src, mask, [&](E a) { return emulation::f(a, scalar); }); \
  }                                                                                              \
  static_assert(true)

TANDEM_SCALAR(Adds, wrapped_add, true);
TANDEM_SCALAR(Maxs, larger, true);
TANDEM_SCALAR(Mins, smaller, true);
TANDEM_SCALAR(Muls, wrapped_multiply, sizeof(E) > 1 && !(std::is_same_v<E, bfloat16_t>));
#undef TANDEM_SCALAR

template <typename T = DefaultType, auto mode = MaskMergeMode::ZEROING, typename E>
  requires(std::is_same_v<E, float> || (emulation::Integer<E> && sizeof(E) > 1))
void Div(RegTensor<E> &dst, RegTensor<E> &left, RegTensor<E> &right, MaskReg &mask) {
  emulation::check_type<T, E>();
  constexpr bool kKeeps = emulation::keeps_subnormals<mode>();
  emulation::binary<MaskMergeMode::ZEROING>("Div", dst, left, right, mask, [](E a, E b) {
    if constexpr (std::is_same_v<E, float>)
      return kKeeps ? a / b : emulation::flushed(emulation::flushed(a) / emulation::flushed(b));
    else
      return emulation::divided(a, b);
  });
}

#define TANDEM_ELEMENTARY(name, f)                                                \
  template <typename T = DefaultType, auto mode = MaskMergeMode::ZEROING>         \
  void name(RegTensor<float> &dst, RegTensor<float> &src, MaskReg &mask) {        \
    emulation::check_type<T, float>();                                            \
    emulation::unary<MaskMergeMode::ZEROING>(#name, dst, src, mask, [](float a) { \
      return emulation::elementary<mode>(a, [](double x) { return f(x); });       \
    });                                                                           \
  }                                                                               \
  static_assert(true)

TANDEM_ELEMENTARY(Exp, std::exp);
TANDEM_ELEMENTARY(Ln, std::log);
TANDEM_ELEMENTARY(Log, std::log);
TANDEM_ELEMENTARY(Log2, std::log2);
TANDEM_ELEMENTARY(Sqrt, std::sqrt);
#undef TANDEM_ELEMENTARY

template <typename T = DefaultType, MaskMergeMode mode = MaskMergeMode::ZEROING, typename E>
  requires emulation::kOneOf<E, int8_t, int16_t, int32_t, int64_t, float>
void Abs(RegTensor<E> &dst, RegTensor<E> &src, MaskReg &mask) {
  emulation::check_type<T, E>();
  static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");
  emulation::unary<mode>("Abs", dst, src, mask, [](E a) {
    if constexpr (std::is_same_v<E, float>)
      return std::fabs(a);
    else
      return a < 0 ? E(0 - uint64_t(a)) : a;
  });
}

template <typename T = DefaultType, MaskMergeMode mode = MaskMergeMode::ZEROING, typename E>
  requires emulation::kOneOf<E, int8_t, int16_t, int32_t, int64_t, float>
void Neg(RegTensor<E> &dst, RegTensor<E> &src, MaskReg &mask) {
  emulation::check_type<T, E>();
  static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");
  emulation::unary<mode>("Neg", dst, src, mask, [](E a) {
    if constexpr (std::is_same_v<E, float>)
      return -a;
    else
      return E(0 - uint64_t(a));
  });
}

template <typename T = DefaultType, MaskMergeMode mode = MaskMergeMode::ZEROING, typename E>
  requires emulation::kOneOf<E, int32_t, int64_t, float>
void Relu(RegTensor<E> &dst, RegTensor<E> &src, MaskReg &mask) {
  emulation::check_type<T, E>();
  static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");
  emulation::unary<mode>("Relu", dst, src, mask, [](E a) { return emulation::larger(E(0), a); });
}

// dst = left * right + dst, rounded once.
template <typename T = DefaultType, MaskMergeMode mode = MaskMergeMode::ZEROING, typename E>
  requires emulation::kOneOf<E, float, int16_t, uint16_t, int32_t, uint32_t>
void MulAddDst(RegTensor<E> &dst, RegTensor<E> &left, RegTensor<E> &right, MaskReg &mask) {
  emulation::check_type<T, E>();
  static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");
  emulation::fused("MulAddDst", dst, left, right, dst, mask);
}

// dst = dst * left + right, rounded once.
template <typename T = DefaultType, MaskMergeMode mode = MaskMergeMode::ZEROING>
void MulDstAdd(RegTensor<float> &dst, RegTensor<float> &left, RegTensor<float> &right,
               MaskReg &mask) {
  emulation::check_type<T, float>();
  static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");
  emulation::fused("MulDstAdd", dst, dst, left, right, mask);
}

// dst = scalar * src + dst, rounded once.
template <typename T = DefaultType, typename U = DefaultType,
          MaskMergeMode mode = MaskMergeMode::ZEROING>
void Axpy(RegTensor<float> &dst, RegTensor<float> &src, const float scalar, MaskReg &mask) {
  emulation::check_type<T, float>();
  static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");
  const auto a = emulation::lanes_of<float>(src);
  const auto b = emulation::lanes_of<float>(dst);
  emulation::write_selected<float, mode>(
      "Axpy", dst, mask, [&](int i) { return std::fma(scalar, a[i], b[i]); }, src, dst);
}

}  // namespace AscendC::Reg

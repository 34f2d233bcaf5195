// Comparisons, selections, bit logic and shifts of registers, and operations on masks.
//
// Written from the pages under "比较与选择", "逻辑计算" and "MaskReg计算".
#pragma once

#include "register_lanes.h"

namespace tandem::emulation {

template <AscendC::CMPMODE mode, typename T>
bool compared(T left, T right) {
  const auto a = [](T x) {
    if constexpr (std::is_same_v<T, bfloat16_t>)
      return float(x);
    else
      return x;
  };
  switch (mode) {
    case AscendC::CMPMODE::LT:
      return a(left) < a(right);
    case AscendC::CMPMODE::GT:
      return a(left) > a(right);
    case AscendC::CMPMODE::EQ:
      return a(left) == a(right);
    case AscendC::CMPMODE::LE:
      return a(left) <= a(right);
    case AscendC::CMPMODE::GE:
      return a(left) >= a(right);
    case AscendC::CMPMODE::NE:
      return a(left) != a(right);
  }
  return false;
}

// Where the mask selects, what f(i) says; 0 elsewhere.
template <typename T, typename F, typename... R>
void compare(const char *what, MaskReg &dst, const MaskReg &mask, F f, const R &...sources) {
  vector_function.require(what);
  const ByteSet selected = selected_bytes(mask, sizeof(T), what);
  (require_known(sources, selected, what), ...);
  dst = make_mask(sizeof(T), [&](int i) { return has(selected, i * int(sizeof(T))) && f(i); });
}

// A left shift by the width or more gives 0 (documented for more; equal is taken to be the same).
template <typename T>
T shifted_left(T value, int64_t bits) {
  constexpr int kBits = 8 * sizeof(T);
  if (bits < 0) fail("undefined-result", "shift by 0 or more", "a shift by %ld bits", long(bits));
  if (bits >= kBits) return 0;
  const T shifted = T(uint64_t(value) << bits);
  if constexpr (std::is_signed_v<T>) {
    // An arithmetic left shift keeps the sign bit and drops the bit beside it.
    constexpr T kSign = std::numeric_limits<T>::min();
    return T((shifted & ~kSign) | (value & kSign));
  }
  return shifted;
}

template <typename T>
T shifted_right(T value, int64_t bits) {
  constexpr int kBits = 8 * sizeof(T);
  if (bits < 0) fail("undefined-result", "shift by 0 or more", "a shift by %ld bits", long(bits));
  if (bits >= kBits) return value < 0 ? T(-1) : T(0);
  return T(value >> bits);
}

// Bits of a mask by f(word of a, word of b); bits that the mask leaves out become 0.
template <typename F>
void mask_logic(const char *what, MaskReg &dst, const MaskReg &left, const MaskReg &right,
                const MaskReg &mask, F f) {
  vector_function.require(what);
  const MaskReg a = left, b = right, m = mask;
  dst.bits = wordwise([&](int i) { return f(a.bits[i], b.bits[i]) & m.bits[i]; });
  dst.known =
      wordwise([&](int i) { return m.known[i] & (~m.bits[i] | (a.known[i] & b.known[i])); });
}

}  // namespace tandem::emulation

namespace AscendC::Reg {

template <typename T = DefaultType, CMPMODE mode = CMPMODE::EQ, typename E>
  requires emulation::Number<E>
void Compare(MaskReg &dst, RegTensor<E> &left, RegTensor<E> &right, MaskReg &mask) {
  emulation::check_type<T, E>();
  const auto a = emulation::lanes_of<E>(left);
  const auto b = emulation::lanes_of<E>(right);
  emulation::compare<E>(
      "Compare", dst, mask, [&](int i) { return emulation::compared<mode>(a[i], b[i]); }, left,
      right);
}

template <typename T = DefaultType, CMPMODE mode = CMPMODE::EQ, typename E, typename V>
  requires emulation::Number<E>
void Compares(MaskReg &dst, RegTensor<E> &src, V scalar, MaskReg &mask) {
  emulation::check_type<T, E>();
  static_assert(std::is_same_v<E, V>, "the scalar has the type of the elements");
  const auto a = emulation::lanes_of<E>(src);
  emulation::compare<E>(
      "Compares", dst, mask, [&](int i) { return emulation::compared<mode>(a[i], scalar); }, src);
}

// src0 where the mask selects, else src1. Each lane needs only the one that it takes.
template <typename T = DefaultType, typename E>
void Select(RegTensor<E> &dst, RegTensor<E> &src0, RegTensor<E> &src1, MaskReg &mask) {
  emulation::check_type<T, E>();
  emulation::vector_function.require("Select");
  const emulation::ByteSet first = emulation::selected_bytes(mask, sizeof(E), "Select");
  uint8_t image[emulation::kRegisterBytes];
  for (int i = 0; i < emulation::kRegisterBytes; ++i)
    image[i] = (emulation::has(first, i) ? src0 : src1).bytes[i];
  const emulation::ByteSet known = emulation::wordwise(
      [&](int i) { return (src0.known[i] & first[i]) | (src1.known[i] & ~first[i]); });
  emulation::Sources sources = src0.sources;
  sources.merge(src1.sources);
  std::memcpy(dst.bytes, image, sizeof image);
  dst.known = known;
  dst.sources = sources;
}

#define TANDEM_LOGIC(name, expression)                                                           \
  template <typename T = DefaultType, MaskMergeMode mode = MaskMergeMode::ZEROING, typename E>   \
    requires emulation::Integer<E>                                                               \
  void name(RegTensor<E> &dst, RegTensor<E> &left, RegTensor<E> &right, MaskReg &mask) {         \
    emulation::check_type<T, E>();                                                               \
    static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");       \
    emulation::binary<mode>(#name, dst, left, right, mask, [](E a, E b) { return expression; }); \
  }                                                                                              \
  inline void name(MaskReg &dst, MaskReg &left, MaskReg &right, MaskReg &mask) {                 \
    emulation::mask_logic(#name, dst, left, right, mask,                                         \
                          [](uint64_t a, uint64_t b) { return expression; });                    \
  }                                                                                              \
  static_assert(true)

TANDEM_LOGIC(And, a &b);
TANDEM_LOGIC(Or, a | b);
TANDEM_LOGIC(Xor, a ^ b);
#undef TANDEM_LOGIC

template <typename T = DefaultType, MaskMergeMode mode = MaskMergeMode::ZEROING, typename E>
  requires emulation::Integer<E>
void Not(RegTensor<E> &dst, RegTensor<E> &src, MaskReg &mask) {
  emulation::check_type<T, E>();
  static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");
  emulation::unary<mode>("Not", dst, src, mask, [](E a) { return ~a; });
}

inline void Not(MaskReg &dst, MaskReg &src, MaskReg &mask) {
  emulation::mask_logic("Not", dst, src, src, mask, [](uint64_t a, uint64_t) { return ~a; });
}

// Bits of src0 where the mask selects, else of src1.
inline void Select(MaskReg &dst, MaskReg &src0, MaskReg &src1, MaskReg &mask) {
  emulation::vector_function.require("Select");
  const MaskReg a = src0, b = src1, m = mask;
  dst.bits = emulation::wordwise(
      [&](int i) { return (a.bits[i] & m.bits[i]) | (b.bits[i] & ~m.bits[i]); });
  dst.known = emulation::wordwise(
      [&](int i) { return m.known[i] & ((a.known[i] & m.bits[i]) | (b.known[i] & ~m.bits[i])); });
}

#define TANDEM_SHIFT(name, f)                                                                      \
  template <typename T = DefaultType, typename U = DefaultType,                                    \
            MaskMergeMode mode = MaskMergeMode::ZEROING, typename E>                               \
    requires emulation::Integer<E>                                                                 \
  void name(RegTensor<E> &dst, RegTensor<E> &src, RegTensor<std::make_signed_t<E>> &bits,          \
            MaskReg &mask) {                                                                       \
    emulation::check_type<T, E>();                                                                 \
    emulation::check_type<U, std::make_signed_t<E>>();                                             \
    static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");         \
    const auto a = emulation::lanes_of<E>(src);                                                    \
    const auto b = emulation::lanes_of<std::make_signed_t<E>>(bits);                               \
    emulation::write_selected<E, mode>(                                                            \
        #name, dst, mask, [&](int i) { return emulation::f(a[i], b[i]); }, src, bits);             \
  }                                                                                                \
  template <typename T = DefaultType, typename U = int16_t,                                        \
            MaskMergeMode mode = MaskMergeMode::ZEROING, typename E>                               \
    requires emulation::Integer<E>                                                                 \
  void name##s(RegTensor<E> &dst, RegTensor<E> &src, int16_t bits, MaskReg &mask) {                \
    emulation::check_type<T, E>();                                                                 \
    emulation::check_type<U, int16_t>();                                                           \
    static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");         \
    emulation::unary<mode>(#name "s", dst, src, mask, [&](E a) { return emulation::f(a, bits); }); \
  }                                                                                                \
  static_assert(true)

TANDEM_SHIFT(ShiftLeft, shifted_left);
TANDEM_SHIFT(ShiftRight, shifted_right);
#undef TANDEM_SHIFT

}  // namespace AscendC::Reg

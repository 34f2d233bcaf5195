// How operations visit the lanes of registers: checks, masks, and what unselected lanes become.
#pragma once

#include "register_types.h"

namespace tandem::emulation {

// dst[i] = f(i) for selected lanes. Others become 0, or keep what they are where merging. f reads
// copies of the lanes, so registers may overlap.
template <typename T, MaskMergeMode mode, typename F, typename... R>
void write_selected(const char *what, RegTensor<T> &dst, const MaskReg &mask, F f,
                    const R &...sources) {
  static_assert(mode != MaskMergeMode::UNKNOWN, "a mode is needed: ZEROING or MERGING");
  constexpr bool kMerging = mode == MaskMergeMode::MERGING;
  vector_function.require(what);
  const ByteSet selected = selected_bytes(mask, sizeof(T), what);
  (require_known(sources, selected, what), ...);
  std::array<T, kLanes<T>> lanes;
  if constexpr (kMerging)
    lanes = lanes_of<T>(dst);
  else
    std::memset(static_cast<void *>(lanes.data()), 0, kRegisterBytes);
  for (int i = 0; i < kLanes<T>; ++i)
    if (has(selected, i * int(sizeof(T)))) lanes[i] = f(i);
  set_lanes(dst, lanes);
  Sources from = kMerging ? dst.sources : Sources{};
  (from.merge(sources.sources), ...);
  dst.sources = from;
  const ByteSet before = dst.known;
  dst.known = kMerging ? wordwise([&](int w) { return before[w] | selected[w]; }) : kAll;
}

template <MaskMergeMode mode, typename T, typename F>
void unary(const char *what, RegTensor<T> &dst, const RegTensor<T> &src, const MaskReg &mask, F f) {
  const auto a = lanes_of<T>(src);
  write_selected<T, mode>(what, dst, mask, [&](int i) { return T(f(a[i])); }, src);
}

template <MaskMergeMode mode, typename T, typename F>
void binary(const char *what, RegTensor<T> &dst, const RegTensor<T> &left,
            const RegTensor<T> &right, const MaskReg &mask, F f) {
  const auto a = lanes_of<T>(left);
  const auto b = lanes_of<T>(right);
  write_selected<T, mode>(what, dst, mask, [&](int i) { return T(f(a[i], b[i])); }, left, right);
}

// The numbers of the device that the emulation computes with; half only moves and converts.
template <typename T>
concept Integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;
template <typename T>
concept Real = std::is_same_v<T, float> || std::is_same_v<T, bfloat16_t>;
template <typename T>
concept Number = Integer<T> || Real<T>;

template <typename T, typename... Allowed>
inline constexpr bool kOneOf = (std::is_same_v<T, Allowed> || ...);

// Integer arithmetic keeps the low bits (the documented default of the control register).
template <typename T>
T wrapped_add(T a, T b) {
  if constexpr (Integer<T>)
    return T(uint64_t(a) + uint64_t(b));
  else
    return T(float(a) + float(b));
}

template <typename T>
T wrapped_subtract(T a, T b) {
  if constexpr (Integer<T>)
    return T(uint64_t(a) - uint64_t(b));
  else
    return T(float(a) - float(b));
}

template <typename T>
T wrapped_multiply(T a, T b) {
  if constexpr (Integer<T>)
    return T(uint64_t(a) * uint64_t(b));
  else
    return T(float(a) * float(b));
}

// NaN of either side stays; of two zeros the positive one is larger.
template <typename T>
T larger(T a, T b) {
  if constexpr (Real<T>) {
    if (float(a) != float(a)) return a;
    if (float(b) != float(b)) return b;
    if (float(a) == float(b)) return std::signbit(float(a)) ? b : a;
  }
  return a > b ? a : b;
}

template <typename T>
T smaller(T a, T b) {
  if constexpr (Real<T>) {
    if (float(a) != float(a)) return a;
    if (float(b) != float(b)) return b;
    if (float(a) == float(b)) return std::signbit(float(a)) ? a : b;
  }
  return a < b ? a : b;
}

// A subnormal number becomes a zero of its sign, as in the device's single instructions for
// division, roots, exponentials and logarithms.
inline float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

}  // namespace tandem::emulation

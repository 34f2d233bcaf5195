// Reductions of a register to one element, or to one a block of 32 bytes.
//
// Written from the pages "Reduce", "ReduceDataBlock" and "PairReduceElem". Sums are documented as a
// binary tree over neighbours: (a0 + a1) + (a2 + a3) and so on, lanes that the mask leaves out
// counting as 0.
#pragma once

#include "register_lanes.h"

namespace AscendC::Reg {

enum class ReduceType { SUM = 0, MAX, MIN };
enum class PairReduce { SUM = 0 };

}  // namespace AscendC::Reg

namespace tandem::emulation {

using AscendC::Reg::ReduceType;

// The selected lanes, and what stands for the others.
template <typename T>
std::array<T, kLanes<T>> selected_lanes(const char *what, const Register &src, const MaskReg &mask,
                                        T other) {
  vector_function.require(what);
  const ByteSet selected = selected_bytes(mask, sizeof(T), what);
  require_known(src, selected, what);
  auto lanes = lanes_of<T>(src);
  for (int i = 0; i < kLanes<T>; ++i)
    if (!has(selected, i * int(sizeof(T)))) lanes[i] = other;
  return lanes;
}

// Lanes first..first+count as a tree of neighbours; count is a power of two.
template <typename T, typename U>
T tree_sum(const std::array<U, kLanes<U>> &lanes, int first, int count) {
  std::array<T, kLanes<U>> level;
  for (int i = 0; i < count; ++i) level[i] = T(lanes[first + i]);
  for (; count > 1; count /= 2)
    for (int i = 0; i < count / 2; ++i) level[i] = wrapped_add(level[2 * i], level[2 * i + 1]);
  return level[0];
}

// What lanes left out of a maximum or minimum count as: the lowest or largest number of the type.
template <typename T>
constexpr T extreme(bool largest) {
  return largest ? std::numeric_limits<T>::max() : std::numeric_limits<T>::lowest();
}

// A result beyond every finite number would be one of the lanes left out, and the documentation is
// not clear about what these hold.
template <typename T>
void check_extreme(const char *what, T result, const MaskReg &mask) {
  if constexpr (std::is_same_v<T, float>) {
    const ByteSet selected = selected_bytes(mask, sizeof(T), what);
    if (std::fabs(result) == std::numeric_limits<float>::max() && !covers(selected, kAll))
      fail("undefined-result", "fill the lanes with Select and reduce with a full mask",
           "%s finds no finite number among the selected lanes, so the result may be one of the "
           "others",
           what);
  }
}

// Lane of the first extreme, or of the first NaN.
template <ReduceType type, typename T>
int extreme_lane(const std::array<T, kLanes<T>> &lanes, int first, int count) {
  int best = first;
  for (int i = first; i < first + count; ++i) {
    if constexpr (std::is_same_v<T, float>)
      if (lanes[i] != lanes[i]) return i;
    const T value =
        type == ReduceType::MAX ? larger(lanes[best], lanes[i]) : smaller(lanes[best], lanes[i]);
    if (std::memcmp(&value, &lanes[best], sizeof value) != 0) best = i;
  }
  return best;
}

template <typename T>
void set_result(RegTensor<T> &dst, const std::array<T, kLanes<T>> &lanes, const Sources &sources) {
  set_lanes(dst, lanes);
  dst.known = kAll;
  dst.sources = sources;
}

}  // namespace tandem::emulation

namespace AscendC::Reg {

// SUM: the sum in lane 0. MAX, MIN: the extreme in lane 0 and the bits of its lane's number in
// lane 1. Other lanes become 0.
template <ReduceType type = ReduceType::SUM, typename T = DefaultType, typename U = DefaultType,
          MaskMergeMode mode = MaskMergeMode::ZEROING, typename D, typename E>
void Reduce(RegTensor<D> &dst, const RegTensor<E> &src, const MaskReg &mask) {
  emulation::check_type<T, D>();
  emulation::check_type<U, E>();
  static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");
  std::array<D, emulation::kLanes<D>> lanes{};
  if constexpr (type == ReduceType::SUM) {
    static_assert((std::is_same_v<D, E> && (emulation::kOneOf<E, float> || sizeof(E) >= 4)) ||
                      (std::is_same_v<D, int32_t> && std::is_same_v<E, int16_t>) ||
                      (std::is_same_v<D, uint32_t> && std::is_same_v<E, uint16_t>),
                  "not a documented pair of types");
    const auto values = emulation::selected_lanes<E>("Reduce", src, mask, E(0));
    lanes[0] = emulation::tree_sum<D>(values, 0, emulation::kLanes<E>);
  } else {
    static_assert(std::is_same_v<D, E> && emulation::Number<E> && sizeof(E) >= 2 &&
                      !std::is_same_v<E, bfloat16_t>,
                  "not a documented pair of types");
    const E other = emulation::extreme<E>(type == ReduceType::MIN);
    const auto values = emulation::selected_lanes<E>("Reduce", src, mask, other);
    const int lane = emulation::extreme_lane<type>(values, 0, emulation::kLanes<E>);
    lanes[0] = values[lane];
    emulation::check_extreme("Reduce", lanes[0], mask);
    const uint64_t number = uint64_t(lane);
    std::memcpy(&lanes[1], &number, sizeof(E));
  }
  emulation::set_result(dst, lanes, src.sources);
}

// The same of each 32 bytes, into the lowest lanes; without lane numbers.
template <ReduceType type = ReduceType::SUM, typename T = DefaultType,
          MaskMergeMode mode = MaskMergeMode::ZEROING, typename E>
  requires emulation::kOneOf<E, int32_t, uint32_t, float>
void ReduceDataBlock(RegTensor<E> &dst, const RegTensor<E> &src, const MaskReg &mask) {
  emulation::check_type<T, E>();
  static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");
  constexpr int kCount = 32 / int(sizeof(E));
  const E other = type == ReduceType::SUM ? E(0) : emulation::extreme<E>(type == ReduceType::MIN);
  const auto values = emulation::selected_lanes<E>("ReduceDataBlock", src, mask, other);
  std::array<E, emulation::kLanes<E>> lanes{};
  for (int block = 0; block < 8; ++block) {
    if constexpr (type == ReduceType::SUM)
      lanes[block] = emulation::tree_sum<E>(values, block * kCount, kCount);
    else {
      lanes[block] = values[emulation::extreme_lane<type>(values, block * kCount, kCount)];
      emulation::check_extreme("ReduceDataBlock", lanes[block], mask);
    }
  }
  emulation::set_result(dst, lanes, src.sources);
}

// Sums of neighbours in the lower half, zeros in the upper.
template <PairReduce type = PairReduce::SUM, typename T = DefaultType,
          MaskMergeMode mode = MaskMergeMode::ZEROING>
void PairReduceElem(RegTensor<float> &dst, const RegTensor<float> &src, const MaskReg &mask) {
  emulation::check_type<T, float>();
  static_assert(mode == MaskMergeMode::ZEROING, "not supported by the device: MERGING");
  const auto values = emulation::selected_lanes<float>("PairReduceElem", src, mask, 0.0f);
  std::array<float, emulation::kLanes<float>> lanes{};
  for (int i = 0; i < emulation::kLanes<float> / 2; ++i)
    lanes[i] = values[2 * i] + values[2 * i + 1];
  emulation::set_result(dst, lanes, src.sources);
}

}  // namespace AscendC::Reg

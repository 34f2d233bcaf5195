// Moving lanes: copies, broadcasts, interleaving, packing, gathering within a register, and the
// same of masks.
//
// Written from the pages "Move", "Duplicate", "Arange", "Interleave", "DeInterleave", "Pack",
// "UnPack", "Squeeze", "Gather" and those under "MaskReg计算". Lanes that are not usable stay so
// wherever they go.
#pragma once

#include "register_lanes.h"

namespace AscendC::Reg {

enum class IndexOrder { INCREASE_ORDER, DECREASE_ORDER };

}  // namespace AscendC::Reg

namespace tandem::emulation {

// Byte i of dst is byte source(i) of what two registers hold side by side, or 0 where that is
// negative.
template <typename F>
void permute(const char *what, Register &dst, const Register &low, const Register &high, F source) {
  vector_function.require(what);
  uint8_t image[kRegisterBytes];
  ByteSet known = kNone;
  for (int i = 0; i < kRegisterBytes; ++i) {
    const int from = source(i);
    const Register &reg = from < kRegisterBytes ? low : high;
    image[i] = from < 0 ? 0 : reg.bytes[from % kRegisterBytes];
    put(known, i, from < 0 || has(reg.known, from % kRegisterBytes));
  }
  Sources sources = low.sources;
  sources.merge(high.sources);
  std::memcpy(dst.bytes, image, sizeof image);
  dst.known = known;
  dst.sources = sources;
}

// The same of the bits of masks, in groups of `size` bits.
template <typename F>
MaskReg permuted(const MaskReg &low, const MaskReg &high, F source) {
  MaskReg out;
  for (int i = 0; i < kRegisterBytes; ++i) {
    const int from = source(i);
    const MaskReg &mask = from < kRegisterBytes ? low : high;
    put(out.bits, i, from >= 0 && has(mask.bits, from % kRegisterBytes));
    put(out.known, i, from < 0 || has(mask.known, from % kRegisterBytes));
  }
  return out;
}

// Element i of 2n elements in turn from two lists of n, as a place in the lists side by side.
constexpr int interleaved(int byte, int size) {
  const int element = byte / size;
  return element % 2 * kRegisterBytes + element / 2 * size + byte % size;
}

constexpr int deinterleaved(int byte, int size, int part) {
  return (byte / size * 2 + part) * size + byte % size;
}

}  // namespace tandem::emulation

namespace AscendC::Reg {

template <typename T = DefaultType, typename E>
void Move(RegTensor<E> &dst, RegTensor<E> &src) {
  emulation::check_type<T, E>();
  emulation::permute("Move", dst, src, src, [](int i) { return i; });
}

template <typename T = DefaultType, MaskMergeMode mode = MaskMergeMode::MERGING, typename E>
void Move(RegTensor<E> &dst, RegTensor<E> &src, MaskReg mask) {
  emulation::check_type<T, E>();
  static_assert(mode == MaskMergeMode::MERGING, "not supported by the device: ZEROING");
  emulation::unary<mode>("Move", dst, src, mask, [](E a) { return a; });
}

template <typename T = DefaultType, typename U = DefaultType, typename E, typename V>
  requires std::is_same_v<E, V>
void Duplicate(RegTensor<E> &dst, V scalar) {
  emulation::check_type<T, E>();
  emulation::vector_function.require("Duplicate");
  std::array<E, emulation::kLanes<E>> lanes;
  lanes.fill(scalar);
  emulation::set_lanes(dst, lanes);
  dst.known = emulation::kAll;
  dst.sources = {};
}

template <typename T = DefaultType, MaskMergeMode mode = MaskMergeMode::ZEROING, typename E,
          typename V>
  requires std::is_same_v<E, V>
void Duplicate(RegTensor<E> &dst, V scalar, MaskReg &mask) {
  emulation::check_type<T, E>();
  emulation::write_selected<E, mode>("Duplicate", dst, mask, [&](int) { return scalar; });
}

// The lowest element in all selected lanes.
template <typename T = DefaultType, HighLowPart pos = HighLowPart::LOWEST,
          MaskMergeMode mode = MaskMergeMode::ZEROING, typename E>
void Duplicate(RegTensor<E> &dst, RegTensor<E> &src, MaskReg &mask) {
  emulation::check_type<T, E>();
  static_assert(pos == HighLowPart::LOWEST, "not supported by the device: HIGHEST");
  emulation::ByteSet first = emulation::kNone;
  for (unsigned i = 0; i < sizeof(E); ++i) emulation::put(first, int(i), true);
  emulation::require_known(src, first, "Duplicate");
  const E value = emulation::lanes_of<E>(src)[0];
  const emulation::Sources sources = src.sources;
  emulation::write_selected<E, mode>("Duplicate", dst, mask, [&](int) { return value; });
  dst.sources.merge(sources);
}

// scalar, scalar + 1, ... in increasing order; in decreasing order the scalar stands last.
template <typename T = DefaultType, IndexOrder order = IndexOrder::INCREASE_ORDER, typename E,
          typename V>
  requires(std::is_same_v<E, V> && emulation::kOneOf<E, int8_t, int16_t, int32_t, int64_t, float>)
void Arange(RegTensor<E> &dst, V scalar) {
  emulation::check_type<T, E>();
  emulation::vector_function.require("Arange");
  std::array<E, emulation::kLanes<E>> lanes;
  for (int i = 0; i < emulation::kLanes<E>; ++i) {
    const int step = order == IndexOrder::INCREASE_ORDER ? i : emulation::kLanes<E> - 1 - i;
    lanes[i] = emulation::wrapped_add<E>(scalar, E(step));
  }
  emulation::set_lanes(dst, lanes);
  dst.known = emulation::kAll;
  dst.sources = {};
}

template <typename T = DefaultType, typename E>
void Interleave(RegTensor<E> &dst0, RegTensor<E> &dst1, RegTensor<E> &src0, RegTensor<E> &src1) {
  emulation::check_type<T, E>();
  static_assert(sizeof(E) < 8, "not modelled: registers of 2 * VL");
  const emulation::Register low = src0, high = src1;
  emulation::permute("Interleave", dst0, low, high,
                     [](int i) { return emulation::interleaved(i, sizeof(E)); });
  emulation::permute("Interleave", dst1, low, high, [](int i) {
    return emulation::interleaved(i + emulation::kRegisterBytes, sizeof(E));
  });
}

template <typename T = DefaultType, typename E>
void DeInterleave(RegTensor<E> &dst0, RegTensor<E> &dst1, RegTensor<E> &src0, RegTensor<E> &src1) {
  emulation::check_type<T, E>();
  static_assert(sizeof(E) < 8, "not modelled: registers of 2 * VL");
  const emulation::Register low = src0, high = src1;
  emulation::permute("DeInterleave", dst0, low, high,
                     [](int i) { return emulation::deinterleaved(i, sizeof(E), 0); });
  emulation::permute("DeInterleave", dst1, low, high,
                     [](int i) { return emulation::deinterleaved(i, sizeof(E), 1); });
}

// The low half of each element, in the lower or upper half of dst; the other half becomes 0.
template <typename T = DefaultType, typename U = DefaultType,
          HighLowPart part = HighLowPart::LOWEST, typename D, typename E>
  requires(std::is_unsigned_v<D> && sizeof(E) == 2 * sizeof(D) && emulation::Integer<E>)
void Pack(RegTensor<D> &dst, RegTensor<E> &src) {
  constexpr int kStart = part == HighLowPart::LOWEST ? 0 : emulation::kRegisterBytes / 2;
  emulation::permute("Pack", dst, src, src, [](int i) {
    const int at = i - kStart;
    if (at < 0 || at >= emulation::kRegisterBytes / 2) return -1;
    return at / int(sizeof(D)) * int(sizeof(E)) + at % int(sizeof(D));
  });
}

// Elements of the lower or upper half, widened with zeros or, of signed types, with the sign.
template <typename T = DefaultType, typename U = DefaultType,
          HighLowPart part = HighLowPart::LOWEST, typename D, typename E>
  requires(emulation::Integer<E> && emulation::Integer<D> && sizeof(D) == 2 * sizeof(E) &&
           std::is_signed_v<D> == std::is_signed_v<E>)
void UnPack(RegTensor<D> &dst, RegTensor<E> &src) {
  constexpr int kStart = part == HighLowPart::LOWEST ? 0 : emulation::kLanes<D>;
  const auto lanes = emulation::lanes_of<E>(src);
  emulation::permute("UnPack", dst, src, src, [](int i) {
    return (kStart + i / int(sizeof(D))) * int(sizeof(E)) + i % int(sizeof(E));
  });
  std::array<D, emulation::kLanes<D>> wide;
  for (int i = 0; i < emulation::kLanes<D>; ++i) wide[i] = D(lanes[kStart + i]);
  emulation::set_lanes(dst, wide);
}

// Selected elements next to one another from the lowest lane on, then zeros.
template <typename T = DefaultType, typename E>
void Squeeze(RegTensor<E> &dst, RegTensor<E> &src, MaskReg &mask) {
  emulation::check_type<T, E>();
  const emulation::ByteSet selected = emulation::selected_bytes(mask, sizeof(E), "Squeeze");
  std::array<int, emulation::kRegisterBytes> from;
  from.fill(-1);
  for (int i = 0, at = 0; i < emulation::kRegisterBytes; ++i)
    if (emulation::has(selected, i)) from[at++] = i;
  emulation::permute("Squeeze", dst, src, src, [&](int i) { return from[i]; });
}

// dst[i] = src[index[i] mod lanes].
template <typename T = DefaultType, typename U = DefaultType, typename E, typename V>
  requires(std::is_unsigned_v<V> && sizeof(V) == sizeof(E) && sizeof(E) < 8)
void Gather(RegTensor<E> &dst, RegTensor<E> &src, RegTensor<V> &index) {
  emulation::check_type<T, E>();
  emulation::check_type<U, V>();
  emulation::require_known(index, emulation::kAll, "Gather");
  const auto places = emulation::lanes_of<V>(index);
  const emulation::Sources by = index.sources;
  emulation::permute("Gather", dst, src, src, [&](int i) {
    return int(places[i / sizeof(E)] % emulation::kLanes<E> * sizeof(E) + i % sizeof(E));
  });
  dst.sources.merge(by);
}

inline void Move(MaskReg &dst, MaskReg &src) { dst = src; }

template <typename T>
void Interleave(MaskReg &dst0, MaskReg &dst1, MaskReg &src0, MaskReg &src1) {
  const MaskReg low = src0, high = src1;
  dst0 = emulation::permuted(low, high, [](int i) { return emulation::interleaved(i, sizeof(T)); });
  dst1 = emulation::permuted(low, high, [](int i) {
    return emulation::interleaved(i + emulation::kRegisterBytes, sizeof(T));
  });
}

template <typename T>
void DeInterleave(MaskReg &dst0, MaskReg &dst1, MaskReg &src0, MaskReg &src1) {
  const MaskReg low = src0, high = src1;
  dst0 = emulation::permuted(low, high,
                             [](int i) { return emulation::deinterleaved(i, sizeof(T), 0); });
  dst1 = emulation::permuted(low, high,
                             [](int i) { return emulation::deinterleaved(i, sizeof(T), 1); });
}

// The even bits, in the lower or upper half; the other half becomes 0 (taken to be so, as for
// registers).
template <HighLowPart part = HighLowPart::LOWEST>
void Pack(MaskReg &dst, MaskReg &src) {
  const MaskReg from = src;
  constexpr int kStart = part == HighLowPart::LOWEST ? 0 : emulation::kRegisterBytes / 2;
  dst = emulation::permuted(from, from, [](int i) {
    const int at = i - kStart;
    return at < 0 || at >= emulation::kRegisterBytes / 2 ? -1 : 2 * at;
  });
}

// Bits of the lower or upper half, each followed by a 0.
template <HighLowPart part = HighLowPart::LOWEST>
void UnPack(MaskReg &dst, MaskReg &src) {
  const MaskReg from = src;
  constexpr int kStart = part == HighLowPart::LOWEST ? 0 : emulation::kRegisterBytes / 2;
  dst = emulation::permuted(from, from, [](int i) { return i % 2 ? -1 : kStart + i / 2; });
}

}  // namespace AscendC::Reg

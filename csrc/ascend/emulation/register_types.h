// Registers of the register-level vector API: RegTensor, MaskReg, AddrReg, and the masks that
// functions make.
//
// Written from the pages "RegTensor", "MaskReg", "AddrReg", "MaskMergeMode", "RegLayout" and
// "SatMode" of the public documentation. Every byte of a register knows whether it was ever
// written; a mask knows which of its bits are defined.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core.h"
#include "vector_function.h"

namespace tandem::emulation {

inline constexpr int kRegisterBytes = 256;
inline constexpr int kWords = 4;  // of 64 bits, one bit a byte of a register

// One bit for each byte of a register.
using ByteSet = std::array<uint64_t, kWords>;

inline constexpr ByteSet kNone{};
inline constexpr ByteSet kAll{~0ull, ~0ull, ~0ull, ~0ull};

constexpr bool has(const ByteSet &set, int byte) { return (set[byte / 64] >> (byte % 64)) & 1; }

constexpr void put(ByteSet &set, int byte, bool value) {
  const uint64_t bit = 1ull << (byte % 64);
  set[byte / 64] = value ? set[byte / 64] | bit : set[byte / 64] & ~bit;
}

template <typename F>
constexpr ByteSet wordwise(F f) {
  ByteSet set{};
  for (int i = 0; i < kWords; ++i) set[i] = f(i);
  return set;
}

constexpr bool covers(const ByteSet &wide, const ByteSet &narrow) {
  for (int i = 0; i < kWords; ++i)
    if (narrow[i] & ~wide[i]) return false;
  return true;
}

// The lowest bit of each element of `size` bytes.
constexpr uint64_t lowest_bits(int size) {
  uint64_t bits = 0;
  for (int i = 0; i < 64; i += size) bits |= 1ull << i;
  return bits;
}

// Loads that a register's value came from: bit i stands for load number newest - i (see
// register_order.h).
struct Sources {
  uint64_t newest = 0;
  uint64_t recent = 0;

  bool include(uint64_t load) const {
    return load <= newest && newest - load < 64 && (recent >> (newest - load)) & 1;
  }

  void merge(Sources other) {
    if (other.newest > newest) std::swap(*this, other);
    const uint64_t age = newest - other.newest;
    if (age < 64) recent |= other.recent << age;
  }
};

struct Register {
  alignas(64) uint8_t bytes[kRegisterBytes];
  ByteSet known = kNone;
  Sources sources;
  uint64_t identity;

  Register() : identity(vector_function.new_register()) { std::memset(bytes, 0xFF, sizeof bytes); }
  Register(const Register &) = default;
  Register &operator=(const Register &) = delete;  // documented is Move
};

}  // namespace tandem::emulation

namespace AscendC {

enum class CMPMODE { LT = 0, GT, EQ, LE, GE, NE };

constexpr uint32_t GetVecLen() { return emulation::kRegisterBytes; }

namespace emulation = ::tandem::emulation;

namespace Reg {

struct DefaultType {};

struct RegTrait {
  int REG_NUM;
};
inline constexpr RegTrait RegTraitNumOne{1};

enum class MaskPattern {
  ALL,
  VL1,
  VL2,
  VL3,
  VL4,
  VL8,
  VL16,
  VL32,
  VL64,
  VL128,
  M3,
  M4,
  H,
  Q,
  ALLF = 15,
};  // clang-format skip
enum class MaskMergeMode { UNKNOWN, MERGING, ZEROING };
enum class RegLayout { UNKNOWN = -1, ZERO, ONE, TWO, THREE };
enum class SatMode { UNKNOWN = -1, NO_SAT, SAT };
enum class HighLowPart { LOWEST, HIGHEST };
enum class PostLiteral { POST_MODE_NORMAL, POST_MODE_UPDATE };

template <typename T, const RegTrait &trait = RegTraitNumOne>
struct RegTensor : emulation::Register {
  static_assert(&trait == &RegTraitNumOne, "not modelled: registers of 2 * VL");
  using ActualT = T;
};

// 256 bits; an element of n bytes owns n bits, of which only the lowest counts. A mask made for one
// width leaves the other bits undefined.
struct MaskReg {
  emulation::ByteSet bits{};
  emulation::ByteSet known{};
};

struct AddrReg {
  uint64_t elements = 0;
  int element_size = 0;  // 0: never created
};

}  // namespace Reg
}  // namespace AscendC

namespace tandem::emulation {

using AscendC::Reg::DefaultType;
using AscendC::Reg::MaskMergeMode;
using AscendC::Reg::MaskReg;
using AscendC::Reg::RegTensor;

template <typename R>
using element_of = typename std::remove_cvref_t<R>::ActualT;

template <typename T>
inline constexpr int kLanes = kRegisterBytes / int(sizeof(T));

template <typename R>
concept VectorRegister = std::is_base_of_v<Register, std::remove_cvref_t<R>>;

// An explicit template argument of an operation must name the register's own element type.
template <typename Named, typename Actual>
constexpr void check_type() {
  static_assert(std::is_same_v<Named, DefaultType> || std::is_same_v<Named, Actual>,
                "the named type is not the register's");
}

// Bytes of the lanes that a mask selects; a mask that does not define them is a fault.
inline ByteSet selected_bytes(const MaskReg &mask, int size, const char *what) {
  const uint64_t lowest = lowest_bits(size);
  if (!covers(mask.known, wordwise([&](int) { return lowest; })))
    fail("uninitialised-mask", "make the mask for the type that the operation works on",
         "%s reads bits of a mask that were never set, or not for elements of %d bytes", what,
         size);
  const uint64_t ones = (1ull << size) - 1;
  return wordwise([&](int i) { return (mask.bits[i] & lowest) * ones; });
}

inline void require_known(const Register &reg, const ByteSet &bytes, const char *what) {
  if (!covers(reg.known, bytes))
    fail("uninitialised-read", "load or compute all lanes that the mask selects first",
         "%s uses lanes of a register that were never written", what);
}

template <typename T>
std::array<T, kLanes<T>> lanes_of(const Register &reg) {
  std::array<T, kLanes<T>> lanes;
  std::memcpy(static_cast<void *>(lanes.data()), reg.bytes, kRegisterBytes);
  return lanes;
}

template <typename T>
void set_lanes(Register &reg, const std::array<T, kLanes<T>> &lanes) {
  std::memcpy(reg.bytes, lanes.data(), kRegisterBytes);
}

// A mask for elements of `size` bytes: f(i) tells whether element i is selected.
template <typename F>
MaskReg make_mask(int size, F f) {
  MaskReg mask;
  for (int i = 0; i < kRegisterBytes / size; ++i) put(mask.bits, i * size, f(i));
  mask.known = wordwise([&](int) { return lowest_bits(size); });
  return mask;
}

}  // namespace tandem::emulation

namespace AscendC::Reg {

template <typename T, MaskPattern mode = MaskPattern::ALL, const RegTrait &trait = RegTraitNumOne>
MaskReg CreateMask() {
  static_assert(&trait == &RegTraitNumOne, "not modelled: registers of 2 * VL");
  emulation::vector_function.require("CreateMask");
  constexpr int kLanes = emulation::kLanes<T>;
  constexpr int kFirst[] = {kLanes, 1, 2, 3, 4, 8, 16, 32, 64, 128, 0, 0, kLanes / 2, kLanes / 4};
  if constexpr (mode == MaskPattern::ALLF)
    return emulation::make_mask(sizeof(T), [](int) { return false; });
  else if constexpr (mode == MaskPattern::M3)
    return emulation::make_mask(sizeof(T), [](int i) { return i % 3 == 0; });
  else if constexpr (mode == MaskPattern::M4)
    return emulation::make_mask(sizeof(T), [](int i) { return i % 4 == 0; });
  else {
    static_assert(kFirst[int(mode)] <= kLanes, "the pattern has more elements than a register");
    return emulation::make_mask(sizeof(T), [&](int i) { return i < kFirst[int(mode)]; });
  }
}

// The first `count` elements; count then loses the elements of one register.
template <typename T, const RegTrait &trait = RegTraitNumOne>
MaskReg UpdateMask(uint32_t &count) {
  static_assert(&trait == &RegTraitNumOne, "not modelled: registers of 2 * VL");
  emulation::vector_function.require("UpdateMask");
  constexpr uint32_t kLanes = emulation::kLanes<T>;
  const uint32_t now = count;
  count = count < kLanes ? 0 : count - kLanes;
  return emulation::make_mask(sizeof(T), [&](int i) { return uint32_t(i) < now; });
}

template <typename T>
AddrReg CreateAddrReg(uint16_t index, uint32_t stride) {
  return {uint64_t(index) * stride, sizeof(T)};
}

// One pair of index and stride for each loop, outermost first; at most four.
template <typename T, typename... More>
  requires(sizeof...(More) == 2 || sizeof...(More) == 4 || sizeof...(More) == 6)
AddrReg CreateAddrReg(uint16_t index, uint32_t stride, More... more) {
  return {uint64_t(index) * stride + CreateAddrReg<T>(more...).elements, sizeof(T)};
}

}  // namespace AscendC::Reg

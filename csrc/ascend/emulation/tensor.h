// GlobalTensor and LocalTensor.
#pragma once

#include "core.h"

namespace AscendC {

enum class TPosition : uint8_t {
  GM,
  A1,
  A2,
  B1,
  B2,
  C1,
  C2,
  CO1,
  CO2,
  VECIN,
  VECOUT,
  VECCALC,
  LCM = VECCALC,
  TSCM,
  C2PIPE2GM
};
using QuePosition = TPosition;

}  // namespace AscendC

namespace tandem::emulation {

// The memory that a logical position stands for.
constexpr Space space_of(AscendC::TPosition position) {
  using AscendC::TPosition;
  switch (position) {
    case TPosition::VECIN:
    case TPosition::VECOUT:
    case TPosition::VECCALC:
      return Space::UB;
    case TPosition::A1:
    case TPosition::B1:
    case TPosition::C1:
    case TPosition::TSCM:
      return Space::L1;
    case TPosition::A2:
      return Space::L0A;
    case TPosition::B2:
      return Space::L0B;
    case TPosition::CO1:
      return Space::L0C;
    case TPosition::C2:
      return Space::BT;
    case TPosition::C2PIPE2GM:
      return Space::FB;
    default:
      return Space::GM;
  }
}

// A tensor in local memory without its element type.
struct LocalPlace {
  uint32_t offset = 0;  // bytes
  uint32_t begin = 0;   // of the buffer that it is a part of
  uint32_t end = 0;
  AscendC::TPosition position = AscendC::TPosition::GM;

  Space space() const { return space_of(position); }
};

// A tensor at an address that the kernel chose; faults where it does not fit.
LocalPlace place_tensor(AscendC::TPosition position, uint32_t offset, uint64_t bytes);

// `access` within the tensor's buffer.
inline uint8_t *touch(const LocalPlace &place, uint64_t offset, uint64_t bytes,
                      const Operand &operand) {
  const uint64_t first = place.offset + offset;
  if (first < place.begin || first + bytes > place.end) [[unlikely]]
    fail_outside(place.space(), static_cast<uint32_t>(first), bytes, place.begin, place.end,
                 operand.what);
  return access(place.space(), first, bytes, operand);
}

// A tensor in global memory without its element type. `end` is 0 where no size was given.
struct GlobalPlace {
  uint64_t address = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};

[[noreturn, gnu::cold]] void fail_outside_global(const GlobalPlace &place, uint64_t address,
                                                 uint64_t bytes, const char *what);

inline uint8_t *touch(const GlobalPlace &place, int64_t offset, uint64_t bytes,
                      const Operand &operand) {
  const uint64_t first = place.address + static_cast<uint64_t>(offset);
  if (place.end != 0 && bytes != 0 && (first < place.begin || first + bytes > place.end))
      [[unlikely]]
    fail_outside_global(place, first, bytes, operand.what);
  return access(Space::GM, first, bytes, operand);
}

}  // namespace tandem::emulation

namespace AscendC {

template <class T>
class LocalTensor {
 public:
  using PrimType = T;

  LocalTensor() = default;
  // At a byte address of a memory, `tileSize` elements.
  LocalTensor(TPosition position, uint32_t address, uint32_t tileSize)
      : place_(emulation::place_tensor(position, address, uint64_t{tileSize} * sizeof(T))) {}
  explicit LocalTensor(const emulation::LocalPlace &place) : place_(place) {}

  const emulation::LocalPlace &place() const { return place_; }

  // Elements from here to the end of the buffer.
  uint32_t GetSize() const { return (place_.end - place_.offset) / sizeof(T); }
  TPosition GetPosition() const { return place_.position; }

  LocalTensor operator[](uint32_t offset) const {
    emulation::LocalPlace moved = place_;
    moved.offset += offset * static_cast<uint32_t>(sizeof(T));
    return LocalTensor(moved);
  }

  template <class U>
  LocalTensor<U> ReinterpretCast() const {
    return LocalTensor<U>(place_);
  }

  Ub<T> GetPhyAddr(uint32_t offset = 0) const {
    if (place_.space() != emulation::Space::UB)
      emulation::fail("not-modelled", "pass the tensor itself",
                      "GetPhyAddr of a tensor that is not in UB");
    return Ub<T>(
        {place_.offset + offset * static_cast<uint32_t>(sizeof(T)), place_.begin, place_.end});
  }

  T GetValue(uint32_t index) const {
    static constexpr emulation::Operand kRead{"LocalTensor::GetValue", emulation::Access::read,
                                              PIPE_S, sizeof(T)};
    T value;
    std::memcpy(&value, emulation::touch(place_, uint64_t{index} * sizeof(T), sizeof(T), kRead),
                sizeof(T));
    return value;
  }

  void SetValue(uint32_t index, T value) const {
    static constexpr emulation::Operand kWrite{"LocalTensor::SetValue", emulation::Access::write,
                                               PIPE_S, sizeof(T)};
    std::memcpy(emulation::touch(place_, uint64_t{index} * sizeof(T), sizeof(T), kWrite), &value,
                sizeof(T));
  }

 private:
  emulation::LocalPlace place_;
};

template <class T>
class GlobalTensor {
 public:
  using PrimType = T;

  void SetGlobalBuffer(Gm<T> buffer) { place_ = {buffer.place().address, 0, 0}; }
  void SetGlobalBuffer(Gm<T> buffer, uint64_t size) {
    const uint64_t address = buffer.place().address;
    place_ = {address, address, address + size * sizeof(T)};
  }

  const emulation::GlobalPlace &place() const { return place_; }
  uint64_t GetSize() const {
    return place_.end == 0 ? 0 : (place_.end - place_.address) / sizeof(T);
  }

  GlobalTensor operator[](uint64_t offset) const {
    GlobalTensor moved = *this;
    moved.place_.address += offset * sizeof(T);
    return moved;
  }

  Gm<T> GetPhyAddr(uint64_t offset = 0) const {
    return Gm<T>(emulation::Place<emulation::Space::GM>{place_.address + offset * sizeof(T)});
  }

  T GetValue(uint64_t index) const {
    static constexpr emulation::Operand kRead{"GlobalTensor::GetValue", emulation::Access::read,
                                              PIPE_S, sizeof(T)};
    T value;
    const int64_t offset = static_cast<int64_t>(index * sizeof(T));
    std::memcpy(&value, emulation::touch(place_, offset, sizeof(T), kRead), sizeof(T));
    return value;
  }

 private:
  emulation::GlobalPlace place_;
};

}  // namespace AscendC

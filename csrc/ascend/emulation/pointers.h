// Checked pointers, one class an address space: what `__gm__ T *`, `__ubuf__ T *` ... are under
// bisheng.
//
// Classes of two spaces do not convert into each other, so mixing them does not compile. An element
// p[i] is read and written through `access`, on the scalar pipe of the code that runs. Pointers
// into local memory know the buffer that they came from and do not leave it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cores.h"
#include "fault.h"
#include "memory.h"

namespace tandem::emulation {

// Where a pointer points: an offset within a buffer [begin, end) of a local memory, or an address
// of global memory.
template <Space kSpace>
struct Place {
  uint32_t offset = 0, begin = 0, end = 0;
  bool operator==(const Place &other) const { return offset == other.offset && end == other.end; }
  bool null() const { return end == 0; }
  Place moved(int64_t bytes) const { return {static_cast<uint32_t>(offset + bytes), begin, end}; }
  int64_t position() const { return offset; }
};

template <>
struct Place<Space::GM> {
  uint64_t address = 0;
  bool operator==(const Place &other) const { return address == other.address; }
  bool null() const { return address == 0; }
  Place moved(int64_t bytes) const { return {address + static_cast<uint64_t>(bytes)}; }
  int64_t position() const { return static_cast<int64_t>(address); }
};

[[noreturn, gnu::cold]] void fail_outside(Space space, uint32_t offset, uint64_t bytes,
                                          uint32_t begin, uint32_t end, const char *what);

// `access` at a place, within its buffer.
template <Space kSpace>
inline uint8_t *touch(const Place<kSpace> &place, uint64_t bytes, const Operand &operand) {
  if constexpr (kSpace == Space::GM) {
    return access(Space::GM, place.address, bytes, operand);
  } else {
    if (place.offset < place.begin || place.offset + bytes > place.end) [[unlikely]]
      fail_outside(kSpace, place.offset, bytes, place.begin, place.end, operand.what);
    return access(kSpace, place.offset, bytes, operand);
  }
}

// What an element access does, and how the threads of a SIMT function hear of it (simt_races.h).
enum class Touch : uint8_t { read, fresh_read, write, atomic };
void observe_element(Space space, uint64_t address, uint32_t bytes, Touch touch);

template <Space kSpace, class T>
class Pointer;

// *p and p[i] on their way to being read, written or having their address taken. It must be used at
// once: `auto value = p[i]` cannot be read again, because on the device it would be a copy.
template <Space kSpace, class T>
class Element {
 public:
  explicit Element(const Place<kSpace> &place) : place_(place) {}
  Element(const Element &) = delete;

  operator T() && { return load(); }
  void operator=(const T &value) && { store(value); }
  void operator=(Element &&other) && { store(other.load()); }
  template <class U>
  void operator+=(const U &value) && {
    store(static_cast<T>(load() + value));
  }
  Pointer<kSpace, T> operator&() && { return Pointer<kSpace, T>(place_); }

 private:
  Place<kSpace> place_;

  T load() const {
    static constexpr Operand kScalar{"element, read", Access::read, PIPE_S, alignof(T)};
    static constexpr Operand kVector{"element, read", Access::read, PIPE_V, alignof(T)};
    T value;
    std::memcpy(&value, touch(place_, sizeof(T), core().element_pipe == PIPE_V ? kVector : kScalar),
                sizeof(T));
    if (core().element_pipe == PIPE_V) observe(Touch::read);
    return value;
  }
  void store(const T &value) const {
    static constexpr Operand kScalar{"element, written", Access::write, PIPE_S, alignof(T)};
    static constexpr Operand kVector{"element, written", Access::write, PIPE_V, alignof(T)};
    std::memcpy(touch(place_, sizeof(T), core().element_pipe == PIPE_V ? kVector : kScalar), &value,
                sizeof(T));
    if (core().element_pipe == PIPE_V) observe(Touch::write);
  }
  void observe(Touch touch) const {
    observe_element(kSpace, static_cast<uint64_t>(place_.position()), sizeof(T), touch);
  }
};

template <Space kSpace, class T>
class Pointer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using Type = T;

  Pointer() = default;
  Pointer(std::nullptr_t) {}
  explicit Pointer(const Place<kSpace> &place) : place_(place) {}
  // A cast between element types: Ub<float>(pointer), as `(__ubuf__ float *)pointer` on the device.
  template <class U>
  explicit Pointer(const Pointer<kSpace, U> &other) : place_(other.place()) {}

  const Place<kSpace> &place() const { return place_; }

  Element<kSpace, T> operator[](int64_t index) const { return Element<kSpace, T>(at(index)); }
  Element<kSpace, T> operator*() const { return Element<kSpace, T>(place_); }
  Pointer operator+(int64_t count) const { return Pointer(at(count)); }
  Pointer operator-(int64_t count) const { return Pointer(at(-count)); }
  Pointer &operator+=(int64_t count) { return *this = *this + count; }
  Pointer &operator-=(int64_t count) { return *this = *this - count; }
  Pointer &operator++() { return *this += 1; }
  int64_t operator-(const Pointer &other) const {
    return (place_.position() - other.place_.position()) / static_cast<int64_t>(sizeof(T));
  }
  bool operator==(const Pointer &other) const { return place_ == other.place_; }
  bool operator==(std::nullptr_t) const { return place_.null(); }
  bool operator<(const Pointer &other) const { return place_.position() < other.place_.position(); }
  explicit operator bool() const { return !place_.null(); }

 private:
  Place<kSpace> place_{};

  Place<kSpace> at(int64_t index) const {
    return place_.moved(index * static_cast<int64_t>(sizeof(T)));
  }
};

}  // namespace tandem::emulation

template <class T>
using Gm = tandem::emulation::Pointer<tandem::emulation::Space::GM, T>;
template <class T>
using Ub = tandem::emulation::Pointer<tandem::emulation::Space::UB, T>;
template <class T>
using L1 = tandem::emulation::Pointer<tandem::emulation::Space::L1, T>;
template <class T>
using L0a = tandem::emulation::Pointer<tandem::emulation::Space::L0A, T>;
template <class T>
using L0b = tandem::emulation::Pointer<tandem::emulation::Space::L0B, T>;
template <class T>
using L0c = tandem::emulation::Pointer<tandem::emulation::Space::L0C, T>;

// A kernel argument of the C ABI as a pointer into global memory.
template <class T, class P>
inline Gm<T> gm_cast(const P *pointer) {
  return Gm<T>(
      tandem::emulation::Place<tandem::emulation::Space::GM>{reinterpret_cast<uint64_t>(pointer)});
}

// Atomic operations of SIMT threads on GM and UB.
//
// Written from the pages under "原子操作". They return what stood there before. 64-bit types are
// for GM only. Sums of floats are left out on purpose: their bits depend on the order of the
// threads.
#pragma once

#include <concepts>
#include <cstring>

#include "simt.h"

namespace tandem::emulation {

template <typename T, Space space>
concept AtomicNumber =
    std::same_as<T, int32_t> || std::same_as<T, uint32_t> ||
    (space == Space::GM && (std::same_as<T, int64_t> || std::same_as<T, uint64_t>));

// Replace what stands at a place by f(what stands there).
template <Space space, typename T, typename F>
T update(const char *what, const Pointer<space, T> &address, F f) {
  static_assert(AtomicNumber<T, space>, "not documented for this type and memory, or not modelled");
  static constexpr Operand kOperand{"atomic operation", Access::atomic, PIPE_V, alignof(T)};
  simt_threads(what);
  uint8_t *bytes = touch(address.place(), sizeof(T), kOperand);
  observe_element(space, uint64_t(address.place().position()), sizeof(T), Touch::atomic);
  T old;
  std::memcpy(&old, bytes, sizeof old);
  const T now = f(old);
  std::memcpy(bytes, &now, sizeof now);
  return old;
}

}  // namespace tandem::emulation

#define TANDEM_ATOMIC(name, expression)                                                      \
  template <tandem::emulation::Space space, typename T>                                      \
  T name(const tandem::emulation::Pointer<space, T> &address, std::type_identity_t<T> val) { \
    return tandem::emulation::update(#name, address, [&](T old) { return T(expression); });  \
  }                                                                                          \
  static_assert(true)

TANDEM_ATOMIC(asc_atomic_add, old + val);
TANDEM_ATOMIC(asc_atomic_sub, old - val);
TANDEM_ATOMIC(asc_atomic_max, old > val ? old : val);
TANDEM_ATOMIC(asc_atomic_min, old < val ? old : val);
TANDEM_ATOMIC(asc_atomic_and, old &val);
TANDEM_ATOMIC(asc_atomic_or, old | val);
TANDEM_ATOMIC(asc_atomic_xor, old ^ val);
TANDEM_ATOMIC(asc_atomic_exch, (static_cast<void>(old), val));
#undef TANDEM_ATOMIC

template <tandem::emulation::Space space, typename T>
T asc_atomic_cas(const tandem::emulation::Pointer<space, T> &address,
                 std::type_identity_t<T> compare, std::type_identity_t<T> val) {
  return tandem::emulation::update("asc_atomic_cas", address,
                                   [&](T old) { return old == compare ? val : old; });
}

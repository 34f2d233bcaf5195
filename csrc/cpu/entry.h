// How a typed C++ function becomes an entry: its arguments come as 8-byte words, its types as
// letters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tandem.h"

namespace tandem::TANDEM_ISA {

template <typename T>
constexpr char letter() {
  using Item = std::remove_const_t<std::remove_pointer_t<T>>;
  if constexpr (!std::is_pointer_v<T>) {
    static_assert(std::is_same_v<T, int64_t> || std::is_same_v<T, double>);
    return std::is_same_v<T, int64_t> ? 'I' : 'F';
  } else if constexpr (std::is_same_v<Item, uint8_t>) {
    return 'b';
  } else if constexpr (std::is_same_v<Item, uint16_t>) {
    return 'h';
  } else if constexpr (std::is_same_v<Item, int32_t>) {
    return 'i';
  } else if constexpr (std::is_same_v<Item, uint32_t>) {
    return 'u';
  } else if constexpr (std::is_same_v<Item, int64_t>) {
    return 'l';
  } else if constexpr (std::is_same_v<Item, float>) {
    return 'f';
  } else if constexpr (std::is_void_v<Item>) {
    return 'v';
  } else {
    static_assert(std::is_same_v<Item, double>);
    return 'd';
  }
}

template <auto Function>
struct Form;

template <typename... T, int32_t (*Function)(T...)>
struct Form<Function> {
  static constexpr char signature[] = {letter<T>()..., '\0'};

  template <std::size_t... I>
  static int32_t unpack(const uint8_t *words, std::index_sequence<I...>) {
    return Function(word<T>(words + 8 * I)...);
  }

  template <typename Argument>
  static Argument word(const uint8_t *place) {
    Argument value;
    std::memcpy(&value, place, sizeof value);
    return value;
  }

  static int32_t run(const uint8_t *words) {
    return unpack(words, std::index_sequence_for<T...>{});
  }
};

}  // namespace tandem::TANDEM_ISA

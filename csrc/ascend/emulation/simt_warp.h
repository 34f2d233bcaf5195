// Warp functions: shuffles, votes, sums and extremes over the active lanes, and lane numbers.
//
// Written from the pages under "Warp函数". The lanes of a warp that wait at one place in the source
// are the active ones there. Reading a lane that is not active gives an undefined value on the
// device: a fault here.
#pragma once

#include <cstring>

#include "simt.h"

namespace tandem::emulation {

template <typename T>
concept Shuffled =
    std::is_same_v<T, int32_t> || std::is_same_v<T, uint32_t> || std::is_same_v<T, float> ||
    std::is_same_v<T, int64_t> || std::is_same_v<T, uint64_t>;

template <typename T>
concept Reduced =
    std::is_same_v<T, int32_t> || std::is_same_v<T, uint32_t> || std::is_same_v<T, float>;

template <typename T>
uint64_t to_bits(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

template <typename T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Lane whose value another one gets, of a shuffle in groups of `width` lanes.
using LaneRule = uint32_t (*)(uint32_t lane, uint32_t argument, uint32_t width);

uint32_t shuffle_from(uint32_t lane, uint32_t argument, uint32_t width);
uint32_t shuffle_up(uint32_t lane, uint32_t argument, uint32_t width);
uint32_t shuffle_down(uint32_t lane, uint32_t argument, uint32_t width);
uint32_t shuffle_xor(uint32_t lane, uint32_t argument, uint32_t width);

[[noreturn]] void fail_inactive(uint32_t lane, uint32_t source);

template <LaneRule rule>
void shuffle(const WarpCall &call) {
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    if (!((call.active >> lane) & 1)) continue;
    Thread &thread = *call.lanes[lane];
    const uint32_t source = rule(lane, thread.argument, thread.width);
    if (!((call.active >> source) & 1)) fail_inactive(lane, source);
    thread.result = call.lanes[source]->value;
  }
}

void set_all(const WarpCall &call, uint64_t result);
void ballot(const WarpCall &call);
void any(const WarpCall &call);
void all(const WarpCall &call);

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    return T(a + b);
  }
};
struct Larger {
  template <typename T>
  T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};
struct Smaller {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};

// As a binary tree over neighbouring lanes; lanes that are not active are left out. The
// documentation says that the tree is binary, but not which one.
template <typename T, typename F>
void reduce(const WarpCall &call) {
  T value[kWarp] = {};
  bool there[kWarp];
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    there[lane] = (call.active >> lane) & 1;
    if (there[lane]) value[lane] = from_bits<T>(call.lanes[lane]->value);
  }
  for (uint32_t step = 1; step < kWarp; step *= 2)
    for (uint32_t lane = 0; lane < kWarp; lane += 2 * step) {
      if (there[lane] && there[lane + step])
        value[lane] = F()(value[lane], value[lane + step]);
      else if (there[lane + step])
        value[lane] = value[lane + step];
      there[lane] = there[lane] || there[lane + step];
    }
  set_all(call, to_bits(value[0]));
}

uint32_t lane_number(const char *what);
uint32_t checked_width(int32_t width);

}  // namespace tandem::emulation

#define TANDEM_SHUFFLE(name, rule, type, check)                                       \
  template <tandem::emulation::Shuffled T>                                            \
  T name(T var, type argument, int32_t width = warpSize,                              \
         const std::source_location &where = std::source_location::current()) {       \
    namespace emulation = tandem::emulation;                                          \
    const uint32_t lanes = emulation::checked_width(width);                           \
    if (!(check))                                                                     \
      emulation::fail("undefined-result", "keep it within the documented range",      \
                      #name " with argument %lld", static_cast<long long>(argument)); \
    return emulation::from_bits<T>(                                                   \
        emulation::meet_warp(#name, emulation::shuffle<emulation::rule>,              \
                             emulation::site_of(where), emulation::to_bits(var),      \
                             uint32_t(argument), lanes)                               \
            .result);                                                                 \
  }                                                                                   \
  static_assert(true)

TANDEM_SHUFFLE(asc_shfl, shuffle_from, int32_t, argument >= 0);
TANDEM_SHUFFLE(asc_shfl_up, shuffle_up, uint32_t, true);
TANDEM_SHUFFLE(asc_shfl_down, shuffle_down, uint32_t, true);
TANDEM_SHUFFLE(asc_shfl_xor, shuffle_xor, int32_t, argument >= 0 && uint32_t(argument) < lanes);
#undef TANDEM_SHUFFLE

#define TANDEM_VOTE(name, type, function, argument, value)                                         \
  inline type name(argument const std::source_location &where = std::source_location::current()) { \
    namespace emulation = tandem::emulation;                                                       \
    return type(                                                                                   \
        emulation::meet_warp(#name, emulation::function, emulation::site_of(where), value, 0, 0)   \
            .result);                                                                              \
  }                                                                                                \
  static_assert(true)
#define TANDEM_COMMA ,

TANDEM_VOTE(asc_ballot, uint32_t, ballot, int32_t predicate TANDEM_COMMA, predicate != 0);
TANDEM_VOTE(asc_any, int32_t, any, int32_t predicate TANDEM_COMMA, predicate != 0);
TANDEM_VOTE(asc_all, int32_t, all, int32_t predicate TANDEM_COMMA, predicate != 0);
TANDEM_VOTE(asc_activemask, uint32_t, ballot, , 1);
#undef TANDEM_COMMA
#undef TANDEM_VOTE

#define TANDEM_REDUCE(name, operation)                                                 \
  template <tandem::emulation::Reduced T>                                              \
  T name(T val, const std::source_location &where = std::source_location::current()) { \
    namespace emulation = tandem::emulation;                                           \
    return emulation::from_bits<T>(                                                    \
        emulation::meet_warp(#name, emulation::reduce<T, emulation::operation>,        \
                             emulation::site_of(where), emulation::to_bits(val), 0, 0) \
            .result);                                                                  \
  }                                                                                    \
  static_assert(true)

TANDEM_REDUCE(asc_reduce_add, Add);
TANDEM_REDUCE(asc_reduce_max, Larger);
TANDEM_REDUCE(asc_reduce_min, Smaller);
#undef TANDEM_REDUCE

inline int32_t laneid() { return int32_t(tandem::emulation::lane_number("laneid")); }
inline int32_t lanemask_eq() {
  return int32_t(1u << tandem::emulation::lane_number("lanemask_eq"));
}
inline int32_t lanemask_lt() {
  return int32_t((1u << tandem::emulation::lane_number("lanemask_lt")) - 1);
}
inline int32_t lanemask_le() {
  return int32_t((2u << tandem::emulation::lane_number("lanemask_le")) - 1);
}
inline int32_t lanemask_gt() { return ~lanemask_le(); }
inline int32_t lanemask_ge() { return ~lanemask_lt(); }

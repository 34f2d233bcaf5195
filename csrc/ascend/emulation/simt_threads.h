// Threads of a SIMT function: one fiber each, a warp of 32 lanes, and where they wait for one
// another.
//
// Written from the pages "核函数配置", "编程模型", "同步与内存栅栏简介" and "Warp函数简介". Threads
// run in the order of their numbers until they wait; nothing may rely on that, and what does is a
// fault (see simt_races.h).
#pragma once

#include <cstdint>
#include <source_location>

#include "core.h"
#include "simt_races.h"
#include "simt_types.h"

namespace tandem::emulation {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kMostThreads = 2048;
constexpr uint32_t kThreadStack = 64 * 1024;
// Of the 256 KB, 8 are reserved and 32 the smallest data cache of SIMT threads.
constexpr uint32_t kSimtUb = 216 * 1024;

// Bytes of UB that the launch asked for; a SIMT function's data cache may lie in the rest.
inline uint32_t declared_ub = 0;

// A place in the source: lanes that meet there take part in one warp function.
struct Site {
  const char *file = nullptr;
  uint32_t line = 0, column = 0;
  bool operator==(const Site &) const = default;
};

inline Site site_of(const std::source_location &where) {
  return {where.file_name(), where.line(), where.column()};
}

struct Thread;

// The lanes that take part in a warp function, all at one site.
struct WarpCall {
  Thread *lanes[kWarp];
  uint32_t active;  // bit by lane
};

// Sets the result of every active lane.
using WarpFunction = void (*)(const WarpCall &call);

struct Thread {
  enum State : uint8_t { running, at_barrier, in_warp, ended } state = running;
  Site site;
  WarpFunction function = nullptr;
  uint64_t value = 0;     // what it brings to a warp function
  uint32_t argument = 0;  // of a shuffle: the source or its distance
  uint32_t width = 0;
  uint64_t result = 0;
};

// The SIMT function that runs on this core, or null.
struct Threads {
  uint32_t number = 0;  // of the thread that runs
  dim3 block{1, 1, 1};
  SimtRaces races;
};

Threads &simt_threads(const char *what);
bool simt_running();

// Run `body(context)` as `threads` threads on this core.
void run_simt(const dim3 &threads, void (*body)(void *context), void *context);

void wait_for_block(const Site &site);
// Bring a value to a warp function; returns the thread with its result.
const Thread &meet_warp(const char *what, WarpFunction function, const Site &site, uint64_t value,
                        uint32_t argument, uint32_t width);

}  // namespace tandem::emulation

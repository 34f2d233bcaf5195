// Vector clocks of a launch: who may rely on whose accesses being complete.
//
// An agent is a pipe of a core. Instructions are executed at once, in program order, but nothing
// may rely on that: an access is ordered after another one only where the program said so, by a
// flag, a barrier or a queue. An agent's time counts its releases, so all accesses between two
// releases carry one stamp.
#pragma once

#include <cstdint>

// The pipes of a core, with the documented names.
enum pipe_t : uint8_t {
  PIPE_S = 0,
  PIPE_V = 1,
  PIPE_M = 2,
  PIPE_MTE1 = 3,
  PIPE_MTE2 = 4,
  PIPE_MTE3 = 5,
  PIPE_FIX = 6,
  PIPE_ALL = 7
};

namespace tandem::emulation {

constexpr int kPipes = 7;
constexpr int kCores = 6;
constexpr int kAgents = kPipes * kCores;

const char *pipe_name(pipe_t pipe);

// For every agent, the stamp up to which its accesses are known to be complete.
struct Clock {
  uint32_t complete[kAgents];

  void join(const Clock &other) {
    for (int agent = 0; agent < kAgents; ++agent) {
      const uint32_t time = other.complete[agent];
      complete[agent] = complete[agent] < time ? time : complete[agent];
    }
  }
};

// Stamps have 23 bits.
constexpr uint32_t kMostStamps = (1u << 23) - 1;
[[noreturn, gnu::cold]] void fail_too_long();

struct Agent {
  Clock seen;    // what an instruction of this pipe may rely on
  uint32_t now;  // stamp of its own next access
  uint8_t index;
  // Whether the documentation orders the instructions of this pipe among themselves: S, and V on
  // this device. Of all others a later one may start before an earlier one is done, unless
  // PipeBarrier stands between them.
  bool in_order;

  // A message that says: all accesses of this pipe up to here are complete, and so is all that it
  // relied on.
  Clock release() {
    if (now >= kMostStamps) [[unlikely]]
      fail_too_long();
    Clock message = seen;
    message.complete[index] = now++;
    return message;
  }
  void acquire(const Clock &message) { seen.join(message); }
};

}  // namespace tandem::emulation

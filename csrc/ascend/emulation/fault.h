// Faults: what the emulation says when a kernel does something that hardware would not do as meant.
#pragma once

#include <cstddef>

namespace tandem::emulation {

// Thrown by `fail`, caught by the launch. Kernel code never catches it.
struct Fault {
  const char *name;
  char text[1024];
};

// Thrown through the other cores and threads of a launch that has failed, so that their stacks are
// unwound.
struct Cancelled {};

// End the launch with a named fault: a short name ("out-of-range"), what to do about it, and what
// happened, in printf's form. Where (core, block, SIMT thread) is added by itself. Names are static
// strings.
[[noreturn, gnu::cold, gnu::format(printf, 3, 4)]] void fail(const char *name, const char *fix,
                                                             const char *what, ...);

// The fault of the last launch that failed, as "name: text", and how `launch` stores it.
const char *last_fault();
void remember_fault(const Fault &fault);

}  // namespace tandem::emulation

// The modelled instructions are in namespace AscendC, as documented, and use this one by its short
// name.
namespace AscendC {
namespace emulation = tandem::emulation;
}

// Fibers: the cores of a launch and the threads of a SIMT function, all on one OS thread, in a
// fixed order.
#pragma once

#include <cstdint>

namespace tandem::emulation {

// Things that run as fibers. Subclass it, then call `run_fibers`; groups may nest (SIMT threads
// within a core).
class FiberGroup {
 public:
  // The body of fiber `index`.
  virtual void run(uint32_t index) = 0;
  // Called before a fiber starts and each time before it goes on: set what "current" means.
  virtual void enter(uint32_t index) = 0;
  // Called when none of them runs: after one has waited or ended.
  virtual void leave() {}
  // How a fiber is called in the text of a deadlock.
  virtual void describe(uint32_t index, char *text, uint32_t bytes) const = 0;

 protected:
  ~FiberGroup() = default;
};

// Run `count` fibers, round robin from index 0, each until it ends or waits; returns when all have
// ended. Where all that are left wait for what never comes, the fault is "deadlock". A fault of one
// cancels the others and comes out of here. A fiber that never waits costs a call and shares its
// stack with the next.
void run_fibers(FiberGroup &group, uint32_t count, uint32_t stack_bytes);

// Wait, within a fiber, until `ready(context)`: others run meanwhile. `what` names it in a
// deadlock. Never call it from a destructor or a catch block.
void wait_until(bool (*ready)(const void *context), const void *context, const char *what);

}  // namespace tandem::emulation

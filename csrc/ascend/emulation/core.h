// The emulation core: what the modelled instruction sets are built on. One include for the files of
// this folder.
//
//   fault.h    fail(name, fix, what, ...): every misuse ends the launch with a named fault
//   memory.h   access(space, address, bytes, operand): the one way to touch memory; checks range,
//   alignment,
//              unwritten bytes and missing synchronisation, then returns the host address
//   cores.h    core(): the core that runs now, its memories, pipes and flags; order(from, to);
//   launch fiber.h    run_fibers, wait_until: threads of a SIMT function, on the core that called
//   it pointers.h Gm<T>, Ub<T>, L1<T> ...: checked pointers, one class an address space types.h
//   half, bfloat16_t and the small formats
//
// A modelled instruction looks like this:
//
//   static constexpr Operand kSource{"Abs, source", Access::read, PIPE_V, 32};
//   static constexpr Operand kResult{"Abs, destination", Access::write, PIPE_V, 32};
//   auto *x = reinterpret_cast<const float *>(access(Space::UB, source.offset(), bytes, kSource));
//   auto *y = reinterpret_cast<float *>(access(Space::UB, result.offset(), bytes, kResult));
//   for (...) y[i] = fabsf(x[i]);
//
// An instruction "runs on a pipe" by naming it in its operands: nothing else is scheduled.
#pragma once

#include "cores.h"
#include "fault.h"
#include "fiber.h"
#include "memory.h"
#include "numbers.h"
#include "pointers.h"

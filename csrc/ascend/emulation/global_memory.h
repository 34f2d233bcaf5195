// Global memory: the ranges of host memory that kernels may touch, each with its shadow.
#pragma once

#include <cstdint>

#include "shadow.h"

namespace tandem::emulation {

struct GlobalRange {
  uint64_t base;   // of the shadow, a multiple of 32
  uint64_t begin;  // of the memory
  uint64_t end;
  Shadow shadow;
};

bool register_global(uint64_t address, uint64_t bytes);
bool unregister_global(uint64_t address, uint64_t bytes);
void forget_global();
// Whether one of these was called since the last launch: shadows of global memory are made anew
// then.
bool global_changed();

// Before a launch: make the union of what is registered known to `find_global`. `anew`: with empty
// shadows.
void prepare_global(bool anew);

// The range that holds all of these bytes, null where there is none.
GlobalRange *find_global(uint64_t address, uint64_t bytes);

}  // namespace tandem::emulation

// Register-level vector functions (VF): the call, what runs, and the faults of its use.
//
// Written from the pages "asc_vf_call" and "函数执行空间限定符" of the public documentation. A core
// runs one such function at a time, from its first instruction to its last, so one state is enough.
#pragma once

#include <cstdint>

#include "cores.h"
#include "fault.h"

namespace tandem::emulation {

struct VectorFunction {
  bool running = false;
  uint64_t registers = 0;  // made so far, by any function
  int bytes_wait = 0;      // helper registers of unaligned stores that still hold bytes

  uint64_t new_register() {
    require("RegTensor");
    return ++registers;
  }

  void require(const char *what) const {
    if (!running)
      fail("outside-vector-function", "call it from a __simd_vf__ function started by asc_vf_call",
           "%s is used where no register-level vector function runs", what);
  }
};

inline VectorFunction vector_function;

class RunningVectorFunction {
 public:
  RunningVectorFunction();
  ~RunningVectorFunction() {
    vector_function.running = false;
    end_vector_function();
  }
  // What must hold when the function returns.
  void finish() const;
  RunningVectorFunction(const RunningVectorFunction &) = delete;
  RunningVectorFunction &operator=(const RunningVectorFunction &) = delete;
};

}  // namespace tandem::emulation

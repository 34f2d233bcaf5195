#include "vector_function.h"

#include "register_order.h"
#include "simt_threads.h"

namespace tandem::emulation {

RegisterOrder &register_order() {
  static RegisterOrder orders[kCores];
  return orders[core().index];
}

RunningVectorFunction::RunningVectorFunction() {
  if (core().type != CoreType::vector)
    fail("wrong-core", "call vector functions on vector cores only",
         "a vector function starts on a cube core");
  if (vector_function.running || simt_running())
    fail("nested-vector-function", "call a __simd_callee__ function instead",
         "a vector function calls another one");
  begin_vector_function();
  vector_function.running = true;
  vector_function.bytes_wait = 0;
  register_order().begin(core().memory(Space::UB).size);
}

void RunningVectorFunction::finish() const {
  if (vector_function.bytes_wait != 0)
    fail("unaligned-register", "call StoreUnAlignPost after the last StoreUnAlign",
         "a vector function ends while bytes wait in a helper register for unaligned stores");
}

}  // namespace tandem::emulation

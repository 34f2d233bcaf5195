// Planted faults: small kernels with a mistake, and without it when `fixed`.
//
//   SCENARIO(__vector__, 1, wait_without_set, "wait-without-set") {
//     if (fixed) SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
//     WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
//   }
//
// gives a kernel on 1 block with the arguments x and y, 4096 floats each of registered memory (the
// input and the output), and `fixed`. Python finds the scenarios by the text of these lines
// (test_faults.py), so each is one line.
#pragma once

#include "kernel.h"

namespace scenarios {

struct Scenario {
  const char *name;
  int32_t (*run)(Gm<float> x, Gm<float> y, bool fixed);
  const Scenario *next;

  Scenario(const char *its_name, int32_t (*its_run)(Gm<float>, Gm<float>, bool));
};

}  // namespace scenarios

#define SCENARIO(kind, blocks, name, fault)                                               \
  __global__ kind static void name##_kernel(Gm<float> x, Gm<float> y, bool fixed);        \
  static const scenarios::Scenario name##_scenario(                                       \
      #name, [](Gm<float> x, Gm<float> y, bool fixed) -> int32_t {                        \
        return TANDEM_LAUNCH_UB(name##_kernel, blocks, 216 * 1024, nullptr, x, y, fixed); \
      });                                                                                 \
  void name##_kernel([[maybe_unused]] Gm<float> x, [[maybe_unused]] Gm<float> y,          \
                     [[maybe_unused]] bool fixed)

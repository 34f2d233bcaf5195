// The list of all scenarios, and the entries that the tests call.
#include "scenario.h"

#include <cstring>

namespace scenarios {

namespace {

const Scenario *first = nullptr;

}  // namespace

Scenario::Scenario(const char *its_name, int32_t (*its_run)(Gm<float>, Gm<float>, bool))
    : name(its_name), run(its_run), next(first) {
  first = this;
}

}  // namespace scenarios

// Run a scenario; -1 where there is none of that name.
TANDEM_API int32_t run_scenario(const char *name, const float *x, float *y, int32_t fixed) {
  for (const scenarios::Scenario *one = scenarios::first; one != nullptr; one = one->next)
    if (std::strcmp(one->name, name) == 0)
      return one->run(gm_cast<float>(x), gm_cast<float>(y), fixed != 0);
  return -1;
}

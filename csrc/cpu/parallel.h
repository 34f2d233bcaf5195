// Splitting a call's work over the threads of the OpenMP runtime that torch brings.
#pragma once

#include <cstdint>

namespace tandem {

using ShareFn = void (*)(const void *context, int64_t begin, int64_t end);

// True where an OpenMP runtime is there to be shared.
bool parallel_available();

// Calls share(context, begin, end) for parts of [0, count) that together cover it, one part a
// thread; on the calling thread alone where the work is not worth waking another. `work`:
// elementary operations (or bytes moved) of one task.
void split(int64_t count, int64_t work, ShareFn share, const void *context);

// The same with a callable body(begin, end).
template <typename Body>
inline void parallel_for(int64_t count, int64_t work, const Body &body) {
  split(
      count, work,
      [](const void *context, int64_t begin, int64_t end) {
        (*static_cast<const Body *>(context))(begin, end);
      },
      &body);
}

// Number i of an order in which every stretch has an equal share of the numbers below any bound:
// what a row selects ends somewhere, and whoever had the chunks behind would have nothing to do.
inline int64_t dealt(int64_t i, int64_t count) {
  int64_t number = 0;
  for (int64_t step = 1; count > 1; step *= 2) {
    const int64_t even = (count + 1) / 2;
    if (i >= even) number += step;
    count = i < even ? even : count - even;
    i = i < even ? i : i - even;
  }
  return number;
}

}  // namespace tandem

// OpenMP without linking an OpenMP runtime.
//
// The process must hold one OpenMP runtime only, and torch brings it. These are the entry points
// that compilers themselves call; as weak symbols they bind to torch's runtime when it is globally
// visible (the loader on the Python side sees to that) and are null otherwise.
#include "parallel.h"

extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*fn)(void *), void *data, unsigned threads,
                                         unsigned flags);
__attribute__((weak)) int omp_get_max_threads(void);
__attribute__((weak)) int omp_get_num_threads(void);
__attribute__((weak)) int omp_get_thread_num(void);
}

namespace tandem {
namespace {

// Some microseconds of one core: below that, starting a second thread, which spins between the
// calls of a step, costs more than it brings.
constexpr int64_t kWorthSplitting = int64_t{1} << 15;

struct Team {
  ShareFn share;
  const void *context;
  int64_t count;
};

void run_share(void *data) {
  const Team &team = *static_cast<const Team *>(data);
  const int64_t threads = omp_get_num_threads(), id = omp_get_thread_num();
  const int64_t begin = team.count * id / threads, end = team.count * (id + 1) / threads;
  if (begin < end) team.share(team.context, begin, end);
}

}  // namespace

bool parallel_available() {
  return GOMP_parallel && omp_get_max_threads && omp_get_num_threads && omp_get_thread_num;
}

void split(int64_t count, int64_t work, ShareFn share, const void *context) {
  const bool large = count > 1 && count >= kWorthSplitting / (work + 1);
  const int most = large && parallel_available() ? omp_get_max_threads() : 1;
  const int64_t threads = most < count ? most : count;
  if (threads <= 1) {
    if (count > 0) share(context, 0, count);
    return;
  }
  Team team{share, context, count};
  GOMP_parallel(run_share, &team, static_cast<unsigned>(threads), 0);
}

}  // namespace tandem

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

// About 0.1 ms of one core: below that, waking a second thread costs more than it brings.
constexpr int64_t kWorthWaking = int64_t{1} << 20;

struct Team {
  RowsFn fn;
  const void *ctx;
  int64_t rows;
};

void run_share(void *data) {
  const Team &team = *static_cast<const Team *>(data);
  const int64_t threads = omp_get_num_threads(), id = omp_get_thread_num();
  const int64_t share = (team.rows + threads - 1) / threads;
  const int64_t begin = id * share < team.rows ? id * share : team.rows;
  const int64_t end = begin + share < team.rows ? begin + share : team.rows;
  if (begin < end) team.fn(team.ctx, begin, end);
}

}  // namespace

bool parallel_available() {
  return GOMP_parallel && omp_get_max_threads && omp_get_num_threads && omp_get_thread_num;
}

void for_rows(int64_t rows, int64_t work_per_row, RowsFn fn, const void *ctx) {
  const bool large = rows > 1 && rows >= kWorthWaking / (work_per_row + 1);
  const int threads = large && parallel_available() ? omp_get_max_threads() : 1;
  if (threads <= 1) {
    fn(ctx, 0, rows);
    return;
  }
  Team team{fn, ctx, rows};
  GOMP_parallel(run_share, &team, static_cast<unsigned>(threads), 0);
}

}  // namespace tandem

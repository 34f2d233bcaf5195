// moe_combine: brings expert results back to their tokens: a sum in f32, rounded once.
//
//   y       bf16 [N, H]
//   source  i32 [T, k]     row of y that serves a pair, negative: none
//   shared  bf16 [T, H]    is added last; NULL: none
//   out     bf16 [T, H]    out
#include "parallel.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::moe_combine {

constexpr int64_t kColumns = 512;  // of a row that are one task

template <typename Load, typename Store>
TANDEM_INLINE void add_up(const uint16_t *y, const int32_t *source, const uint16_t *shared,
                          int64_t H, int64_t k, const Load &read, const Store &write) {
  Sum sum;
  for (int64_t i = 0; i < k; ++i)
    if (source[i] >= 0) sum += read(y + source[i] * H);
  if (shared) sum += read(shared);
  write(sum.value());
}

int32_t run(const uint16_t *y, const int32_t *source, const uint16_t *shared, uint16_t *out,
            int64_t N, int64_t T, int64_t H, int64_t k) {
  if (N < 0 || T < 0 || H < 0 || k < 0) return TANDEM_BAD_SHAPE;
  if (T && H && (!out || (k && !source) || (N && !y))) return TANDEM_NULL_POINTER;
  int32_t most = -1;
  for (int64_t i = 0; i < T * k; ++i) most = source[i] > most ? source[i] : most;
  if (most >= N) return TANDEM_BAD_INDEX;
  const int64_t tasks = (H + kColumns - 1) / kColumns;
  parallel_for(
      T * tasks, 2 * (k + 2) * (H < kColumns ? H : kColumns), [=](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t t = task / tasks, first = task % tasks * kColumns;
          const int64_t last = first + kColumns < H ? first + kColumns : H;
          const uint16_t *beside = shared ? shared + t * H : nullptr;
          uint16_t *to = out + t * H;
          int64_t h = first;
          for (; h + kLanes <= last; h += kLanes)
            add_up(
                y + h, source + t * k, beside ? beside + h : nullptr, H, k,
                [](const uint16_t *p) { return load(p); }, [&](const Vec &v) { store(to + h, v); });
          if (h < last)
            add_up(
                y + h, source + t * k, beside ? beside + h : nullptr, H, k,
                [&](const uint16_t *p) { return load_part(p, last - h); },
                [&](const Vec &v) { store_part(to + h, v, last - h); });
        }
      });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::moe_combine

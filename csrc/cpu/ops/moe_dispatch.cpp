// moe_dispatch: brings each row to its experts.
//
//   codes      u8 [T, H]           mxfp8
//   scales     u8 [T, H / 32]
//   experts    i32 [T, k]
//   weights    f32 [T, k]
//   row_slot   i32 [T]             negative: padding, which is not sent
//   to_codes   u8 [T * k, H]       out, by (expert, token, k); not written past the last end
//   to_scales  u8 [T * k, H / 32]  out, likewise
//   to_weights f32 [T * k]         out, likewise
//   ends       i32 [count]         out, rows up to each local expert's last
//   source     i32 [T, k]          out, the row that serves a pair, -1 where none does
//   first, count: the local experts
//
// A stable counting sort of the pairs, which are few; then threads copy tokens.
#include "parallel.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::moe_dispatch {

// Sets ends and source.
inline void place(const int32_t *experts, const int32_t *row_slot, int32_t *ends, int32_t *source,
                  int64_t T, int64_t k, int64_t first, int64_t count) {
  for (int64_t e = 0; e < count; ++e) ends[e] = 0;
  for (int64_t t = 0; t < T; ++t)
    for (int64_t i = t * k; i < t * k + k; ++i) {
      const int64_t owner = experts[i] - first;
      const bool mine = row_slot[t] >= 0 && owner >= 0 && owner < count;
      source[i] = mine ? static_cast<int32_t>(owner) : -1;
      if (mine) ++ends[owner];
    }
  int32_t start = 0;
  for (int64_t e = 0; e < count; ++e) {
    const int32_t own = ends[e];
    ends[e] = start;
    start += own;
  }
  for (int64_t i = 0; i < T * k; ++i)
    if (source[i] >= 0) source[i] = ends[source[i]]++;  // starts become ends
}

int32_t run(const uint8_t *codes, const uint8_t *scales, const int32_t *experts,
            const float *weights, const int32_t *row_slot, uint8_t *to_codes, uint8_t *to_scales,
            float *to_weights, int32_t *ends, int32_t *source, int64_t T, int64_t H, int64_t k,
            int64_t first, int64_t count) {
  if (T < 0 || H < 0 || H % 32 || k < 0 || count < 0 || T * k > INT32_MAX) return TANDEM_BAD_SHAPE;
  if ((count && !ends) || (T && k && (!experts || !weights || !row_slot || !source || !to_weights)))
    return TANDEM_NULL_POINTER;
  if (T && k && H && (!codes || !scales || !to_codes || !to_scales)) return TANDEM_NULL_POINTER;
  place(experts, row_slot, ends, source, T, k, first, count);
  const size_t width = static_cast<size_t>(H), groups = width / 32;
  parallel_for(T, 2 * k * H, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t i = t * k; i < t * k + k; ++i) {
        if (source[i] < 0) continue;
        const size_t to = static_cast<size_t>(source[i]), from = static_cast<size_t>(t);
        std::memcpy(to_codes + to * width, codes + from * width, width);
        std::memcpy(to_scales + to * groups, scales + from * groups, groups);
        to_weights[to] = weights[i];
      }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::moe_dispatch

// engram_hash: with r_s = c_0 M_0 xor ... xor c_s M_s, the table row of head h of the n-gram of
// s + 1 tokens is r_s mod prime[s - 1, h] + offset[s - 1, h].
//
//   context      i32 [T, n]              n >= 2, not negative
//   multipliers  i64 [n]                 products are not negative
//   primes       i64 [n - 1, heads]      all above zero
//   offsets      i64 [n - 1, heads]
//   rows         i64 [T, (n - 1) * heads]    out
#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::engram_hash {

constexpr int64_t kWork = 20;  // of a division

int32_t run(const int32_t *context, const int64_t *multipliers, const int64_t *primes,
            const int64_t *offsets, int64_t *rows, int64_t T, int64_t n, int64_t heads) {
  if (T < 0 || n < 2 || heads < 1) return TANDEM_BAD_SHAPE;
  if (T && (!context || !multipliers || !primes || !offsets || !rows)) return TANDEM_NULL_POINTER;
  const int64_t count = (n - 1) * heads;
  for (int64_t i = 0; T && i < count; ++i)
    if (primes[i] < 1) return TANDEM_BAD_VALUE;
  parallel_for(T, kWork * count, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto product =
          [=](int64_t s) {  // unsigned: a product may not overflow, but must not trap
            return static_cast<uint64_t>(context[t * n + s]) *
                   static_cast<uint64_t>(multipliers[s]);
          };
      uint64_t mixed = product(0);
      for (int64_t s = 1; s < n; ++s) {
        mixed ^= product(s);
        for (int64_t i = (s - 1) * heads; i < s * heads; ++i)
          rows[t * count + i] = static_cast<int64_t>(mixed) % primes[i] + offsets[i];
      }
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::engram_hash

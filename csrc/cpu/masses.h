// Exact masses of a row of weights, which sum to 2^42; the plain form in core/ops/_residual.py. And
// how a token is found on a line of weights or masses.
#pragma once

#include "distribution.h"

namespace tandem::TANDEM_ISA {

constexpr int64_t kWhole = int64_t{1} << 42;
constexpr uint64_t kDraftStream = 1000000007;  // added to the seed where drafts are drawn

// Weights as masses: floor(w * 2^42 / total), what is missing to 2^42 on the favourite.
struct Masses {
  int64_t total, favourite, more;
  double scale;

  Masses(int64_t sum, int64_t heaviest)
      : total(sum > 1 ? sum : 1),
        favourite(heaviest),
        more(0),
        scale(static_cast<double>(kWhole) / static_cast<double>(total)) {}

  // Without what is missing. The quotient in double is at most one off; what it leaves of the
  // dividend is below 2^54, so the low 64 bits tell it.
  TANDEM_INLINE int64_t plain(int64_t weight) const {
    const int64_t near = static_cast<int64_t>(static_cast<double>(weight) * scale);
    const int64_t rest =
        static_cast<int64_t>((static_cast<uint64_t>(weight) << 42) -
                             static_cast<uint64_t>(near) * static_cast<uint64_t>(total));
    return near - (rest < 0) + (rest >= total);
  }

  TANDEM_INLINE int64_t of(int64_t weight, int64_t id) const {
    return plain(weight) + (id == favourite ? more : 0);
  }

  // The masses of a block, `more` included.
  TANDEM_INLINE void block(const int32_t *weight, int64_t k, int64_t *mass) const {
    for (int64_t i = 0; i < kVocabBlock; ++i) mass[i] = plain(weight[i]);
    if (favourite >= k && favourite < k + kVocabBlock) mass[favourite - k] += more;
  }
};

TANDEM_INLINE int64_t sum_block(const int64_t *lanes) {
  int64_t sum = 0;
  for (int64_t i = 0; i < kVocabBlock; ++i) sum += lanes[i];
  return sum;
}

// First id whose inclusive sum exceeds the target. `sums`: of the parts of the line; fill(vectors,
// first id, count, lanes) gives what a block weighs.
template <typename Fill>
inline int64_t find_id(const Line &line, const int64_t *sums, int64_t target, const Fill &fill) {
  int64_t part = 0, before = 0, found = -1;
  for (; part + 1 < line.parts() && before + sums[part] <= target; ++part) before += sums[part];
  line.each_block(part, [&](const Register *x, int64_t k, int64_t count) TANDEM_FLAT {
    if (found >= 0) return;
    int64_t lanes[kVocabBlock];
    fill(x, k, count, lanes);
    const int64_t sum = sum_block(lanes);
    if (before + sum <= target) {
      before += sum;
      return;
    }
    for (int64_t i = 0; i < count && found < 0; ++i) {
      before += lanes[i];
      if (before > target) found = k + i;
    }
  });
  return found < 0 ? line.vocab - 1 : found;  // only numbers that are NaN lead past the end
}

// The token that a 53-bit number draws from the kept weights of a row.
inline int64_t draw(const Line &line, const Distribution &d, uint64_t number) {
  if (d.greedy) return d.first;
  return find_id(line, d.weight, scaled_uniform(number, d.total),
                 [&](const Register *x, int64_t k, int64_t, int64_t *lanes) {
                   int32_t weight[kVocabBlock];
                   d.weigh(x, k, weight);
                   for (int64_t i = 0; i < kVocabBlock; ++i) lanes[i] = weight[i];
                 });
}

}  // namespace tandem::TANDEM_ISA

// The k best of a stream of scores that come with ascending indexes: score descending, then index
// ascending; -inf and NaN are never among them.
//
// What beats the k-th best so far goes into a buffer, and a full buffer is thinned to its k best.
// After the first few thousand scores hardly one does, and a stream is read at memory speed.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "order.h"
#include "registers.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::selection {

// Bit l: whether lane l is above a threshold; NaN is not.
TANDEM_INLINE uint32_t lanes_above(const Vec &v, float threshold) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)v, _mm512_set1_ps(threshold), _CMP_GT_OQ);
#elif defined(__AVX2__)
  __m256 half[2];
  std::memcpy(half, &v, sizeof half);
  const __m256 t = _mm256_set1_ps(threshold);
  const auto low = static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(half[0], t, _CMP_GT_OQ)));
  const auto high =
      static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(half[1], t, _CMP_GT_OQ)));
  return low | (high << 8);
#else
  RegisterI32 above[kPartCount], some = {};
  for (int i = 0; i < kPartCount; ++i) {
    above[i] = load_register(reinterpret_cast<const float *>(&v) + i * kRegister) > threshold;
    some |= above[i];
  }
  if (!any(some)) return 0;
  uint32_t mask = 0;
  for (int l = 0; l < kLanes; ++l)
    mask |= static_cast<uint32_t>(above[l / kRegister][l % kRegister] & 1) << l;
  return mask;
#endif
}

class Best {
 public:
  // The buffer has `room` places for each array, a multiple of 16 of at least k + 32. `bits` is 16
  // where scores are bf16: the lower half of their keys says nothing.
  Best(int32_t *keys, int32_t *indexes, int64_t room, int64_t k, int bits)
      : keys_(keys), indexes_(indexes), room_(room), k_(k), last_bit_(32 - bits) {}

  float threshold() const { return threshold_; }

  // Those of 16 scores that a mask names; their indexes come from index_of(lane).
  template <typename IndexOf>
  TANDEM_INLINE void add(const Vec &scores, uint32_t mask, const IndexOf &index_of) {
    float values[kLanes];
    std::memcpy(values, &scores, sizeof values);
    for (; mask; mask &= mask - 1) {
      const int lane = __builtin_ctz(mask);
      keys_[count_] = image(values[lane]);
      indexes_[count_++] = index_of(lane);
    }
    if (count_ > room_ - kLanes) thin();
  }

  // Leaves the k best, or all of fewer, in ascending order of their indexes; returns their number.
  int64_t finish() {
    thin();
    return count_;
  }

 private:
  int64_t at_least(int32_t key, int64_t padded) const {
    RegisterI32 counts = {};
    for (int64_t i = 0; i < padded; i += kRegister) {
      RegisterI32 v;
      std::memcpy(&v, keys_ + i, sizeof v);
      counts -= v >= key;
    }
    int64_t sum = 0;
    for (int l = 0; l < kRegister; ++l) sum += counts[l];
    return sum;
  }

  // The largest key that k of the buffer's keys reach, bit by bit from the top.
  int32_t kth() {
    int64_t padded = count_;
    for (; padded % kLanes; ++padded) keys_[padded] = INT32_MIN;  // less than every score
    uint32_t found = 0;  // the sign bit inverted: so that a set bit is always more
    for (int bit = 31; bit >= last_bit_; --bit) {
      const uint32_t wanted = found | (1u << bit);
      if (at_least(static_cast<int32_t>(wanted ^ 0x80000000u), padded) >= k_) found = wanted;
    }
    const uint32_t rest = (1u << last_bit_) - 1;  // set in the keys of negative scores
    return static_cast<int32_t>(found & 0x80000000u ? found ^ 0x80000000u
                                                    : (found ^ 0x80000000u) | rest);
  }

  __attribute__((noinline)) void thin() {
    if (count_ < k_ || k_ == 0) {
      if (k_ == 0) count_ = 0;
      return;
    }
    const int32_t edge = kth();
    int64_t above = 0, kept = 0;
    for (int64_t i = 0; i < count_; ++i) above += keys_[i] > edge;
    int64_t ties = k_ - above;  // that still find a place: the first ones
    for (int64_t i = 0; i < count_; ++i) {
      const bool keep = keys_[i] > edge || (keys_[i] == edge && ties > 0);
      ties -= keys_[i] == edge && keep;
      keys_[kept] = keys_[i];
      indexes_[kept] = indexes_[i];
      kept += keep;
    }
    count_ = kept;
    threshold_ = preimage(edge);
  }

  int32_t *keys_, *indexes_;
  int64_t room_, k_, count_ = 0;
  int last_bit_;
  float threshold_ = float_of(0xff800000u);  // -inf: what is not above is never chosen
};

}  // namespace tandem::TANDEM_ISA::selection

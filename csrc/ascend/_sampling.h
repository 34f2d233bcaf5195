// Arithmetic of sampling; rules in docs/CONTRACT.md, the plain form in core/ops/_fixed_cdf.py.
//
// Integers are exact. The exponential that weights come from is that of _elementary.h, whose bits
// are the same on every backend, and with them every weight and token.
#pragma once

#include "_elementary.h"
#include "_rng.h"

constexpr float kGreedyBelow = 1e-5f;
constexpr int64_t kWhole = int64_t(1) << 42;  // the masses of a row sum to this
constexpr int32_t kHeaviest = 1 << 30;        // weight of the likeliest token
constexpr int32_t kNowhere = 0x7FFFFFFF;      // above every token id
constexpr int32_t kUnbounded = -2139095042;   // one below the image of -inf
constexpr int64_t kDraftStream = 1000000007;  // of the seed, where drafts are drawn
constexpr float kInfinity = __builtin_inff();
constexpr float kNan = __builtin_nanf("");

// f32 without NaN as an integer in the same order; both zeros have one image.
__simt_callee__ inline int32_t image(float x) {
  const int32_t bits = x == 0.0f ? 0 : __float_as_int(x);
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

// The f32 of an image.
__simt_callee__ inline float preimage(int32_t key) {
  return __int_as_float(key ^ ((key >> 31) & 0x7FFFFFFF));
}

// 1 / temperature; 1 for a greedy row.
__simt_callee__ inline float inverse_temperature(float temperature) {
  return divide(1.0f, temperature < kGreedyBelow ? 1.0f : temperature);
}

// (x - best) * inverse; -inf stays, for an inverse temperature may underflow to 0.
__simt_callee__ inline float scaled_logit(float x, float best, float inverse) {
  const float raw = x - best;
  return raw == -kInfinity ? raw : raw * inverse;
}

// floor(power * 2^30) of an exponential.
__simt_callee__ inline int32_t integer_weight(float power) {
  return int32_t(power * 1073741824.0f);
}

// Smallest weight that min-p leaves: 4 * w >= round(min_p * 2^32).
__simt_callee__ inline int32_t least_weight(float min_p) {
  return int32_t((of_32_bits(min_p) + 3) >> 2);
}

// Whether the filters leave a token: above the bound, or at it and no later than `last`.
__simt_callee__ inline bool is_kept(int32_t key, int32_t token, int32_t weight, int32_t bound,
                                    int32_t last, int32_t least) {
  return weight >= least && (key > bound || (key == bound && token <= last));
}

// What `mass` needs of the sum of a row's weights, up to 2^53: floor((2^64 - 1) / total).
__simt_callee__ inline uint64_t reciprocal(int64_t total) {
  return ~uint64_t(0) / uint64_t(total > 1 ? total : 1);
}

// floor(weight * 2^42 / total) of weights up to 2^30; inverse = reciprocal(total).
//
// A long division of two digits, 32 and 10 bits. A quotient from the reciprocal is at most one too
// small.
__simt_callee__ inline int64_t mass(int64_t weight, int64_t total, uint64_t inverse) {
  const uint64_t divisor = uint64_t(total > 1 ? total : 1);
  const uint64_t dividend = uint64_t(weight) << 32;
  uint64_t high = __umul64hi(dividend, inverse);
  uint64_t rest = dividend - high * divisor;
  if (rest >= divisor) {
    ++high;
    rest -= divisor;
  }
  rest <<= 10;
  uint64_t low = __umul64hi(rest, inverse);
  if (rest - low * divisor >= divisor) ++low;
  return int64_t((high << 10) + low);
}

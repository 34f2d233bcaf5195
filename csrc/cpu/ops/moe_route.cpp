// moe_route: chooses experts and their weights.
//
//   x        bf16 [T, H]
//   gate     bf16 [E, H]     NULL: the gate is wide
//   wide     f32 [E, H]      NULL: it is not
//   bias     f32 [E]         of the choice, of text rows
//   bias_vl  f32 [E]         of image rows
//   roles    i32 [T]         0: text
//   experts  i32 [T, k]      out, by (score descending, index ascending)
//   weights  f32 [T, k]      out
//   scores   f32 [T, E]      scratch, first the products
//   keys     i32 [T, E up to a multiple of 16]    scratch
#include <cmath>

#include "dots.h"
#include "elementary.h"
#include "order.h"
#include "tandem.h"

namespace tandem::TANDEM_ISA::ops::moe_route {

constexpr int32_t kTaken = INT32_MIN;  // below the image of -inf

// sqrt(log(1 + e^x)), NaN of NaN.
TANDEM_INLINE Register affinity(const Register &x) {
  const Register size = (Register)((RegisterI32)x & 0x7fffffff);
  const Register soft = (x > 0.0f ? x : Register{}) + log1p_unit(exp_negative(-size));
  float roots[kRegister];
  store_register(roots, soft);
  for (float &root : roots) root = std::sqrt(root);
  return x != x ? x : load_register(roots);
}

// Products become scores; keys order what is chosen from. NaN counts as -inf.
inline void score_row(float *scores, const float *bias, int32_t *keys, int64_t E) {
  int64_t e = 0;
  const auto score = [&](float *products, const float *offsets) TANDEM_BODY {
    const Register found = affinity(load_register(products));
    const Register choice = found + load_register(offsets);
    const RegisterI32 key = choice != choice ? kLowestImage + RegisterI32{} : image(choice);
    store_register(products, found);
    std::memcpy(keys + e, &key, sizeof key);
  };
  for (; e + kRegister <= E; e += kRegister) score(scores + e, bias + e);
  if (e == E) return;
  float products[kRegister] = {}, offsets[kRegister] = {};
  const size_t rest = static_cast<size_t>(E - e) * sizeof(float);
  std::memcpy(products, scores + e, rest);
  std::memcpy(offsets, bias + e, rest);
  score(products, offsets);
  std::memcpy(scores + e, products, rest);
}

// The lowest index of the largest key.
TANDEM_INLINE int64_t best_of(const int32_t *keys, int64_t padded) {
  RegisterI32 most = kTaken + RegisterI32{};
  for (int64_t e = 0; e < padded; e += kRegister) {
    const RegisterI32 key = load_whole<RegisterI32>(keys + e);
    most = key > most ? key : most;
  }
  int32_t best = most[0];
  for (int i = 1; i < kRegister; ++i) best = most[i] > best ? most[i] : best;
  int64_t at = 0;
  while (keys[at] != best) ++at;
  return at;
}

inline void choose(const float *scores, int32_t *keys, int64_t padded, int64_t k, float scaling,
                   int32_t *experts, float *weights) {
  float total = 0.0f;
  for (int64_t i = 0; i < k; ++i) {
    const int64_t expert = best_of(keys, padded);
    keys[expert] = kTaken;
    experts[i] = static_cast<int32_t>(expert);
    weights[i] = scores[expert];
    total += weights[i];
  }
  for (int64_t i = 0; i < k; ++i) weights[i] = weights[i] / (total + 1e-20f) * scaling;
}

int32_t run(const uint16_t *x, const uint16_t *gate, const float *wide, const float *bias,
            const float *bias_vl, const int32_t *roles, int32_t *experts, float *weights,
            float *scores, int32_t *keys, int64_t T, int64_t H, int64_t E, int64_t k,
            double scaling) {
  if (T < 0 || H < 1 || k < 1 || k > E || E > 1 << 24) return TANDEM_BAD_SHAPE;
  if (T && (!x || !gate == !wide || !bias || !bias_vl || !roles || !experts || !weights ||
            !scores || !keys))
    return TANDEM_NULL_POINTER;
  const auto keep = [=](int64_t t, int64_t e, int count, const float *products) {
    for (int i = 0; i < count; ++i) scores[t * E + e + i] = products[i];
  };
  if (gate)
    each_dot(x, gate, T, H, E, keep);
  else
    each_dot(x, wide, T, H, E, keep);
  const int64_t padded = (E + kLanes - 1) / kLanes * kLanes;
  parallel_for(T, 8 * E + k * E, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      score_row(scores + t * E, roles[t] ? bias_vl : bias, keys + t * padded, E);
      for (int64_t e = E; e < padded; ++e) keys[t * padded + e] = kTaken;
      choose(scores + t * E, keys + t * padded, padded, k, static_cast<float>(scaling),
             experts + t * k, weights + t * k);
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::moe_route

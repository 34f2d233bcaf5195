// draft_heads: what one draft is drawn from, and how far it is trusted, given the token before it.
//
//   base        f32 [N, V]     rows `base_stride` apart
//   hidden      bf16 [N, H]    rows `hidden_stride` apart
//   previous    i32 [N]        negative: none; logits are -inf then and the confidence 0
//   embedding   bf16 [V, R]
//   head        bf16 [V, R]
//   proj        f32 [H + R]
//   logits      f32 [N, V]     out
//   confidence  f32 [N]        out
//   embedded    bf16 [N, R]    scratch
#include "dots.h"
#include "functions.h"
#include "tandem.h"

namespace tandem::TANDEM_ISA::ops::draft_heads {

constexpr float kClip = 60.0f;

// x . w in the order of `row_sum`.
inline float weighed(const uint16_t *x, const float *w, int64_t n) {
  Sum sum;
  const int64_t body = n / kLanes * kLanes;
  for (int64_t k = 0; k < body; k += kLanes) sum += load(x + k) * load(w + k);
  if (body < n) sum += load_part(x + body, n - body) * load_part(w + body, n - body);
  return tree_sum(sum.value());
}

inline float trust(const uint16_t *hidden, const uint16_t *embedded, const float *proj, int64_t H,
                   int64_t R, float temperature) {
  const float score = (weighed(hidden, proj, H) + weighed(embedded, proj + H, R)) / temperature;
  return sigmoid(score > kClip ? kClip : score < -kClip ? -kClip : score);
}

int32_t run(const float *base, const uint16_t *hidden, const int32_t *previous,
            const uint16_t *embedding, const uint16_t *head, const float *proj, float *logits,
            float *confidence, uint16_t *embedded, int64_t N, int64_t V, int64_t H, int64_t R,
            int64_t base_stride, int64_t hidden_stride, double temperature) {
  if (N < 0 || V < 1 || H < 0 || R < 1 || base_stride < V || hidden_stride < H)
    return TANDEM_BAD_SHAPE;
  if (N && (!base || !hidden || !previous || !embedding || !head || !proj || !logits ||
            !confidence || !embedded))
    return TANDEM_NULL_POINTER;
  for (int64_t n = 0; n < N; ++n)
    if (previous[n] >= V) return TANDEM_BAD_INDEX;
  for (int64_t n = 0; n < N; ++n) {
    const size_t size = static_cast<size_t>(R) * sizeof(uint16_t);
    uint16_t *own = embedded + n * R;
    confidence[n] = 0.0f;
    if (previous[n] < 0) {
      std::memset(own, 0, size);
      continue;
    }
    std::memcpy(own, embedding + previous[n] * R, size);
    confidence[n] =
        trust(hidden + n * hidden_stride, own, proj, H, R, static_cast<float>(temperature));
  }
  each_dot(embedded, head, N, R, V, [=](int64_t n, int64_t v, int count, const float *products) {
    float *to = logits + n * V + v;
    const float *from = base + n * base_stride + v;
    for (int i = 0; i < count; ++i)
      to[i] = previous[n] < 0 ? -__builtin_inff() : from[i] + products[i];
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::draft_heads

// engram_gate: adds the looked-up memory to the residual streams.
//
//   trunk    bf16 [T, m, H]
//   kv       bf16 [T, m + 1, H]    m keys, then one value
//   qk       f32 [m, H]            product of the two norm weights
//   roles    i32 [T]               rows of another role than 0 pass unchanged
//   updated  bf16 [T, m, H]        out: h_j + g_j v, rounded once
//
// s_j = sum(h_j qk_j k_j) / sqrt(mean h_j^2 + eps) / sqrt(mean k_j^2 + eps) / sqrt(H) and
// g = sigmoid(copysign(sqrt(max(|s|, 1e-6)), s)), in f32. The sums run in 16 lanes, see row_sum.
#include "functions.h"
#include "hyper.h"
#include "norm.h"
#include "parallel.h"

namespace tandem::TANDEM_ISA::ops::engram_gate {

TANDEM_INLINE float gate_of(const uint16_t *h, const uint16_t *key, const float *qk, int64_t H,
                            float eps) {
  Sum dot, of_h, of_key;
  each_step(0, H, [&](int64_t k, auto step) TANDEM_BODY {
    const Vec a = load_some(h + k, step), b = load_some(key + k, step);
    dot += a * load_some(qk + k, step) * b;
    of_h += a * a;
    of_key += b * b;
  });
  const float inverse_width = static_cast<float>(1.0 / std::sqrt(static_cast<double>(H)));
  const float s = tree_sum(dot.value()) * inverse_root(tree_sum(of_h.value()), H, eps) *
                  inverse_root(tree_sum(of_key.value()), H, eps) * inverse_width;
  const float size = float_of(bits_of(s) & kMagnitude);
  const float root = std::sqrt(size < 1e-6f ? 1e-6f : size);  // NaN stays
  return sigmoid(float_of(bits_of(root) | (bits_of(s) & ~kMagnitude)));
}

int32_t run(const uint16_t *trunk, const uint16_t *kv, const float *qk, const int32_t *roles,
            uint16_t *updated, int64_t T, int64_t m, int64_t H, double eps) {
  if (T < 0 || m < 1 || H < 1) return TANDEM_BAD_SHAPE;
  if (!(eps >= 0.0)) return TANDEM_BAD_VALUE;
  if (T && (!trunk || !kv || !qk || !roles || !updated)) return TANDEM_NULL_POINTER;
  parallel_for(T * m, 12 * H, [=](int64_t begin, int64_t end) {
    for (int64_t stream = begin; stream < end; ++stream) {
      const int64_t t = stream / m, j = stream % m;
      const uint16_t *h = trunk + stream * H, *keys = kv + t * (m + 1) * H;
      uint16_t *out = updated + stream * H;
      if (roles[t] != 0) {
        std::memcpy(out, h, static_cast<size_t>(H) * sizeof *h);
        continue;
      }
      const float gate = gate_of(h, keys + j * H, qk + j * H, H, static_cast<float>(eps));
      each_step(0, H, [&](int64_t k, auto step) TANDEM_BODY {
        const Vec value = load_some(keys + m * H + k, step);
        store_some(out + k, load_some(h + k, step) + gate * value, step);
      });
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::engram_gate

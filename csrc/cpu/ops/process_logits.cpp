// process_logits: log-probabilities of the distribution that `sample` draws from.
//
//   logits       f32 [T, V]     rows `stride` apart; V up to 2^24
//   temperature  f32 [T]
//   top_p        f32 [T]
//   top_k        i32 [T]
//   min_p        f32 [T]        NULL: off
//   logprobs     f32 [T, V]     out, -inf where the filters remove a token
//   filtered     0: all filters are off
#include "filters.h"

namespace tandem::TANDEM_ISA::ops::process_logits {

inline void write_part(const Line &line, const Distribution &d, int64_t part, float *out) {
  const float norm = d.valid ? static_cast<float>(d.log_kept()) : 0.0f;
  const Register nothing = all_lanes(d.valid ? -__builtin_inff() : __builtin_nanf(""));
  line.each_block(part, [&](const Register *x, int64_t k, int64_t count) TANDEM_FLAT {
    Register value[kGroup];
    for (Register &one : value) one = nothing;
    if (d.valid && d.reaches(x)) {
      int32_t weight[kVocabBlock] = {};
      if (d.least > 0) d.weigh(x, k, weight);
      for (int i = 0; i < kGroup; ++i) {
        RegisterI32 w, stays = ~RegisterI32{};
        std::memcpy(&w, weight + i * kRegister, sizeof w);
        if (d.filters) stays = d.kept(x[i], k + i * kRegister, w);
        value[i] = stays != 0 ? d.scaled(x[i]) - norm : nothing;
      }
    }
    std::memcpy(out + k, value, static_cast<size_t>(count) * sizeof(float));
  });
}

int32_t run(const float *logits, const float *temperature, const float *top_p, const int32_t *top_k,
            const float *min_p, float *logprobs, int64_t T, int64_t V, int64_t stride,
            int64_t filtered) {
  if (T < 0 || V < 1 || V > 1 << 24 || stride < V) return TANDEM_BAD_SHAPE;
  if (T && (!logits || !temperature || !top_p || !top_k || !logprobs)) return TANDEM_NULL_POINTER;
  const Numbers numbers{temperature, top_p, top_k, min_p, filtered != 0};
  each_line(T, 8 * V, [=](int64_t t, bool shared) {
    const Line line(logits + t * stride, V, shared);
    const Distribution d = measure(line, numbers, t, false);
    line.each_part(2, [&](int64_t part) { write_part(line, d, part, logprobs + t * V); });
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::process_logits

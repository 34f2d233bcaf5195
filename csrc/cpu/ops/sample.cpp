// sample: one token a row, and its log-probabilities.
//
//   logits       f32 [T, V]     rows `stride` apart; V up to 2^24
//   temperature  f32 [T]
//   top_p        f32 [T]
//   top_k        i32 [T]
//   seed         i64 [T]
//   position     i64 [T]
//   min_p        f32 [T]        NULL: off
//   token        i32 [T]        out, -1 where nothing can be drawn
//   raw          f32 [T]        out, log-probability in softmax(logits)
//   logprob      f32 [T]        out, in the distribution that was drawn from
//   filtered     0: all filters are off
#include "filters.h"
#include "masses.h"

namespace tandem::TANDEM_ISA::ops::sample {

int32_t run(const float *logits, const float *temperature, const float *top_p, const int32_t *top_k,
            const int64_t *seed, const int64_t *position, const float *min_p, int32_t *token,
            float *raw, float *logprob, int64_t T, int64_t V, int64_t stride, int64_t filtered) {
  if (T < 0 || V < 1 || V > 1 << 24 || stride < V) return TANDEM_BAD_SHAPE;
  if (T && (!logits || !temperature || !top_p || !top_k || !seed || !position || !token || !raw ||
            !logprob))
    return TANDEM_NULL_POINTER;
  const Numbers numbers{temperature, top_p, top_k, min_p, filtered != 0};
  each_line(T, 8 * V, [=](int64_t t, bool shared) {
    const Line line(logits + t * stride, V, shared);
    const Distribution d = measure(line, numbers, t, true);
    token[t] = -1;
    raw[t] = logprob[t] = __builtin_nanf("");
    if (!d.valid) return;
    const int64_t id = draw(line, d, uniform53(static_cast<uint64_t>(seed[t]), position[t], 0));
    const float x = line.x[id];
    token[t] = static_cast<int32_t>(id);
    raw[t] = static_cast<float>(static_cast<double>(x - d.peak) - d.log_all());
    logprob[t] = static_cast<float>(static_cast<double>(d.scaled(x)) - d.log_kept());
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::sample

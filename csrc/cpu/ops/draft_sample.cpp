// draft_sample: one draft a row, and the weights that it was drawn by.
//
//   logits       f32 [T, V]     rows `stride` apart; V up to 2^23
//   temperature  f32 [T]
//   top_p        f32 [T]
//   top_k        i32 [T]
//   min_p        f32 [T]
//   seed         i64 [T]
//   position     i64 [T]
//   token        i32 [T]        out, -1 where nothing can be drawn
//   weight       i32 [T, V]     out, 0 where the filters remove a token
//   coupled      1: the draw falls where that of the token itself will
//   filtered     0: all filters are off
#include "filters.h"
#include "masses.h"

namespace tandem::TANDEM_ISA::ops::draft_sample {

// Writes the weights of a part; returns the sum of their masses.
inline int64_t write_part(const Line &line, const Distribution &d, const Masses &masses,
                          int64_t part, int32_t *weight) {
  int64_t sum = 0;
  line.each_block(part, [&](const Register *x, int64_t k, int64_t count) TANDEM_FLAT {
    int32_t own[kVocabBlock];
    int64_t lanes[kVocabBlock];
    d.weigh(x, k, own);
    std::memcpy(weight + k, own, static_cast<size_t>(count) * sizeof(int32_t));
    if (!d.reaches(x)) return;
    masses.block(own, k, lanes);
    sum += sum_block(lanes);
  });
  return sum;
}

// Draws by masses: the weights as they were written, with what is missing on the favourite.
inline int64_t propose(const Line &line, const Distribution &d, int32_t *weight, uint64_t number) {
  Masses masses(d.total, d.favourite);
  int64_t sums[kParts], all = 0;
  line.each_part(8, [&](int64_t part) { sums[part] = write_part(line, d, masses, part, weight); });
  for (int64_t part = 0; part < line.parts(); ++part) all += sums[part];
  masses.more = kWhole - all;
  sums[d.favourite / line.length] += masses.more;
  return find_id(line, sums, static_cast<int64_t>(number >> 11),
                 [&](const Register *, int64_t k, int64_t count, int64_t *lanes) {
                   int32_t own[kVocabBlock] = {};
                   std::memcpy(own, weight + k, static_cast<size_t>(count) * sizeof(int32_t));
                   masses.block(own, k, lanes);
                 });
}

int32_t run(const float *logits, const float *temperature, const float *top_p, const int32_t *top_k,
            const float *min_p, const int64_t *seed, const int64_t *position, int32_t *token,
            int32_t *weight, int64_t T, int64_t V, int64_t stride, int64_t coupled,
            int64_t filtered) {
  if (T < 0 || V < 1 || V > 1 << 23 || stride < V) return TANDEM_BAD_SHAPE;
  if (T && (!logits || !temperature || !top_p || !top_k || !min_p || !seed || !position || !token ||
            !weight))
    return TANDEM_NULL_POINTER;
  const Numbers numbers{temperature, top_p, top_k, min_p, filtered != 0};
  each_line(T, 16 * V, [=](int64_t t, bool shared) {
    const Line line(logits + t * stride, V, shared);
    const Distribution d = measure(line, numbers, t, false);
    if (!d.valid) {
      token[t] = -1;
      std::memset(weight + t * V, 0, static_cast<size_t>(V) * sizeof(int32_t));
      return;
    }
    const uint64_t stream = static_cast<uint64_t>(seed[t]) + (coupled ? 0 : kDraftStream);
    const int64_t id = propose(line, d, weight + t * V, uniform53(stream, position[t], 0));
    token[t] = static_cast<int32_t>(id);
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::draft_sample

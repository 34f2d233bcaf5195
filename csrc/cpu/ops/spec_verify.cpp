// spec_verify: judges drafts and draws one token a row.
//
//   logits       f32 [T, V]     rows `stride` apart; V up to 2^23
//   temperature  f32 [T]
//   top_p        f32 [T]
//   top_k        i32 [T]
//   min_p        f32 [T]
//   seed         i64 [T]
//   position     i64 [T]
//   forced       i32 [T]        a token that is emitted whatever is drawn, -1: none
//   drafts       i32 [M]        -1: none
//   proposal     i32 [M, V]     weights from 0 to 2^30
//   draft_row    i32 [T]        the draft that a row judges, -1: none
//   token        i32 [T]        out, -1 where nothing can be drawn
//   accepted     i32 [T]        out
//   raw          f32 [T]        out
//   logprob      f32 [T]        out
//   coupled      1: a draft is taken where the row draws it; 0: by rejection
//   filtered     0: all filters are off
#include "filters.h"
#include "masses.h"

namespace tandem::TANDEM_ISA::ops::spec_verify {

// Weights of a proposal; ids that are missing have none.
TANDEM_INLINE void read_block(const int32_t *offer, int64_t count, int32_t *weight) {
  if (count < kVocabBlock) std::memset(weight, 0, kVocabBlock * sizeof(int32_t));
  std::memcpy(weight, offer, static_cast<size_t>(count) * sizeof(int32_t));
}

// The masses of a proposal, without what is missing of them.
inline Masses measure_offer(const Line &line, const int32_t *offer) {
  int64_t sums[kParts], total = 0, where = 0;
  int32_t best[kParts];
  line.each_part(1, [&](int64_t part) {
    WeightSum sum;
    RegisterI32 most = {};
    line.each_block(part, [&](const Register *, int64_t k, int64_t count) TANDEM_FLAT {
      int32_t weight[kVocabBlock];
      read_block(offer + k, count, weight);
      for (int i = 0; i < kGroup; ++i) {
        RegisterI32 w;
        std::memcpy(&w, weight + i * kRegister, sizeof w);
        sum.add(w, i);
        most = w > most ? w : most;
      }
    });
    sums[part] = sum.total();
    best[part] = most[0];
    for (int i = 1; i < kRegister; ++i) best[part] = most[i] > best[part] ? most[i] : best[part];
  });
  for (int64_t part = 0; part < line.parts(); ++part) {
    total += sums[part];
    where = best[part] > best[where] ? part : where;
  }
  int64_t id = line.begin(where);
  while (id + 1 < line.end(where) && offer[id] != best[where]) ++id;
  return Masses(total, id);
}

// Target and proposal of a row, on the scale of masses.
class Judge {
 public:
  Judge(const Line &line, const Distribution &d, const int32_t *offer)
      : line_(line),
        d_(d),
        offer_(offer),
        q_(d.total, d.favourite),
        p_(measure_offer(line, offer)) {
    int64_t p_sums[kParts], q_all = 0, p_all = 0;
    line.each_part(16, [&](int64_t part) {
      int64_t q_sum = 0, p_sum = 0;
      line.each_block(part, [&](const Register *x, int64_t k, int64_t count) TANDEM_FLAT {
        int64_t q[kVocabBlock], p[kVocabBlock];
        masses(x, k, count, q, p);
        q_sum += sum_block(q);
        p_sum += sum_block(p);
      });
      sums_[part] = q_sum;
      p_sums[part] = p_sum;
    });
    for (int64_t part = 0; part < line.parts(); ++part) {
      q_all += sums_[part];
      p_all += p_sums[part];
    }
    q_.more = kWhole - q_all;
    p_.more = p_all ? kWhole - p_all : 0;  // a row without weight has no masses
    sums_[q_.favourite / line.length] += q_.more;
  }

  // Whether a draft is taken with a 53-bit number.
  bool takes(int64_t draft, uint64_t number) const {
    const float x = line_.x[draft];
    const float power = d_.keeps(x, draft) ? exp_negative(d_.scaled(x)) : 0.0f;
    const int64_t q = q_.of(static_cast<int64_t>(power * 0x1p30f), draft);
    return scaled_uniform(number, p_.of(offer_[draft], draft)) < q;
  }

  // A token of what the target has more than the proposal; of the target where that is nothing.
  int64_t draw_rest(uint64_t number) const {
    int64_t left[kParts], all = 0;
    line_.each_part(16, [&](int64_t part) {
      int64_t sum = 0;
      line_.each_block(part, [&](const Register *x, int64_t k, int64_t count) TANDEM_FLAT {
        int64_t rest[kVocabBlock];
        residual(x, k, count, rest);
        sum += sum_block(rest);
      });
      left[part] = sum;
    });
    for (int64_t part = 0; part < line_.parts(); ++part) all += left[part];
    if (all)
      return find_id(line_, left, scaled_uniform(number, all),
                     [&](const Register *x, int64_t k, int64_t count, int64_t *lanes) {
                       residual(x, k, count, lanes);
                     });
    return find_id(line_, sums_, scaled_uniform(number, kWhole),
                   [&](const Register *x, int64_t k, int64_t count, int64_t *lanes) {
                     int64_t p[kVocabBlock];
                     masses(x, k, count, lanes, p);
                   });
  }

 private:
  TANDEM_INLINE void masses(const Register *x, int64_t k, int64_t count, int64_t *q,
                            int64_t *p) const {
    int32_t own[kVocabBlock], theirs[kVocabBlock];
    d_.weigh(x, k, own);
    read_block(offer_ + k, count, theirs);
    q_.block(own, k, q);
    p_.block(theirs, k, p);
  }

  TANDEM_INLINE void residual(const Register *x, int64_t k, int64_t count, int64_t *rest) const {
    int64_t p[kVocabBlock];
    masses(x, k, count, rest, p);
    for (int64_t i = 0; i < kVocabBlock; ++i) rest[i] = rest[i] > p[i] ? rest[i] - p[i] : 0;
  }

  const Line &line_;
  const Distribution &d_;
  const int32_t *offer_;
  Masses q_, p_;
  int64_t sums_[kParts];  // of the target's masses
};

int32_t run(const float *logits, const float *temperature, const float *top_p, const int32_t *top_k,
            const float *min_p, const int64_t *seed, const int64_t *position, const int32_t *forced,
            const int32_t *drafts, const int32_t *proposal, const int32_t *draft_row,
            int32_t *token, int32_t *accepted, float *raw, float *logprob, int64_t T, int64_t V,
            int64_t M, int64_t stride, int64_t coupled, int64_t filtered) {
  if (T < 0 || V < 1 || V > 1 << 23 || M < 0 || stride < V) return TANDEM_BAD_SHAPE;
  if (T && (!logits || !temperature || !top_p || !top_k || !min_p || !seed || !position ||
            !forced || !draft_row || !token || !accepted || !raw || !logprob))
    return TANDEM_NULL_POINTER;
  for (int64_t t = 0; t < T; ++t) {
    if (forced[t] >= V || draft_row[t] >= M) return TANDEM_BAD_INDEX;
    if (draft_row[t] >= 0 && drafts[draft_row[t]] >= V) return TANDEM_BAD_INDEX;
  }
  const Numbers numbers{temperature, top_p, top_k, min_p, filtered != 0};
  each_line(T, 16 * V, [=](int64_t t, bool shared) {
    const Line line(logits + t * stride, V, shared);
    const Distribution d = measure(line, numbers, t, true);
    token[t] = -1;
    accepted[t] = 0;
    raw[t] = logprob[t] = __builtin_nanf("");
    if (!d.valid) return;
    const uint64_t own = static_cast<uint64_t>(seed[t]);
    const int64_t draft = draft_row[t] >= 0 ? drafts[draft_row[t]] : -1;
    int64_t id = forced[t];
    if (id < 0 && draft >= 0 && !coupled) {
      const Judge judge(line, d, proposal + draft_row[t] * V);
      id = judge.takes(draft, uniform53(own, position[t], 2))
               ? draft
               : judge.draw_rest(uniform53(own, position[t], 1));
    } else if (id < 0) {
      id = draw(line, d, uniform53(own, position[t], 0));
    }
    const float x = line.x[id];
    token[t] = static_cast<int32_t>(id);
    accepted[t] = draft >= 0 && id == draft;
    raw[t] = static_cast<float>(static_cast<double>(x - d.peak) - d.log_all());
    logprob[t] = d.keeps(x, id)
                     ? static_cast<float>(static_cast<double>(d.scaled(x)) - d.log_kept())
                     : -__builtin_inff();
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::spec_verify

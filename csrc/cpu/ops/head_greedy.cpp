// head_greedy: the likeliest token of each row of products with the output head, which is read only
// where it matters: a copy in fp8, the screen, says where.
//
//   x       bf16 [T, K]      T up to 16, K up to 2^20
//   head    bf16 [V, K]      V up to 2^24
//   codes   fp8_block32 [V, K], the screen    scales  of it, up to 2^100
//   bound   f32 [V in whole 64s]      see below; 0 behind V
//   token   i32 [T]          out, as `sample` gives it for greedy rows of `linear`'s products
//   logits  f32 [T, V]       scratch
//   ids     i32 [T, V]       scratch
//   room    memory of T * (K in whole 128s + 32) * 4 bytes, scratch
//
// Let w be a row of the head, q that of the screen, u = 2^-24, g = K u / (1 - K u), |.| the
// Euclidean norm, fl(.) what the products give, which are sums of exact products in some order.
// The caller promises
//
//   bound >= (|w - q| + (g + 2^-20) (|w| + |q|) + 2^-100) (1 + 2^-21).
//
// The radius bound * length + slack, with a length of |x| + 2^-90, is then at least
// |fl(x.w) - fl(x.q)|, where it is below 2^98:
//
//   - |x.w - x.q| <= |x| |w - q|, and the roundings of a sum, in any order, lose at most g |x| |w|
//     and g |x| |q|. The factor is more than what is rounded away of bound, length and radius.
//   - Nothing is too large for f32: |x| (|w| + |q|) is below 2^118. So is, but for 2^9, x times the
//     scale of a code, of which the least is 2^-9; that of a code 0 would give NaN, which is seen.
//   - Elements below 2^-126 may count as 0. That changes x and w by less than 2^-116 and a product
//     by less than 2^-116 (|x| + |w|), for which 2^-100 and 2^-90 are there.
//   - Results below 2^-126 may become 0: twice an element, and a few times a sum. So may x times a
//     scale, which then meets a code up to 448. The slack is more than all that, below 2^-95.
//
// A logit is at most the screen's plus the radius, and since it is a f32 number, at most that sum
// as it is rounded. Whoever stays below a logit that is known, by this, is not the largest and not
// as large; all others, the candidates, are computed as `linear` does. A row for which a radius is
// too large, or which has many candidates, goes through the whole head, as rows with NaN do.
#include <cmath>

#include "distribution.h"
#include "products.h"

namespace tandem::TANDEM_ISA::ops::head_greedy {

// Of a head of 32k x 768 one row takes 0.45 of the time that the head itself takes, two 0.7, 4 to
// 16 about 0.8. Of more rows computing is what costs: 48 and 64 take 0.9, and each takes 8 V bytes.
constexpr int64_t kMostRows = 16;
constexpr float kSlack = 0x1p-90f, kTooLarge = 0x1p98f;

// The norm of a row, rounded up; not finite where the row is not.
inline float length_of(const uint16_t *x, int64_t K) {
  double sum = 0.0;
  for (int64_t k = 0; k < K; ++k) {
    const double value = float_of(static_cast<uint32_t>(x[k]) << 16);
    sum += value * value;
  }
  return static_cast<float>(std::sqrt(sum) * (1.0 + 0x1p-22)) + kSlack;
}

// A row of logits by the screen.
struct Screened {
  const Line &line;
  const float *bound;
  float length;

  TANDEM_INLINE Register radius(int64_t n) const {
    return load_register(bound + n) * length + kSlack;
  }
  TANDEM_INLINE float least(int64_t n) const { return line.x[n] - (bound[n] * length + kSlack); }

  // The first token of those whose logit is surely the largest; -1 where the screen does not serve.
  int64_t surest() const {
    float best[kParts] = {};
    bool good[kParts] = {};
    line.each_part(2, [&](int64_t part) {
      Register most = all_lanes(-__builtin_inff());
      RegisterI32 bad = {};
      line.each_block(part, [&](const Register *x, int64_t k, int64_t) TANDEM_FLAT {
        for (int i = 0; i < kGroup; ++i) {
          const Register r = radius(k + i * kRegister), low = x[i] - r;
          bad |= (RegisterI32)(x[i] != x[i]) | ~(RegisterI32)(r < kTooLarge);
          most = low > most ? low : most;
        }
      });
      best[part] = most[0];
      for (int i = 1; i < kRegister; ++i) best[part] = most[i] > best[part] ? most[i] : best[part];
      good[part] = !any(bad);
    });
    int64_t where = 0;
    bool all = true;
    for (int64_t part = 0; part < line.parts(); ++part) {
      where = best[part] > best[where] ? part : where;
      all &= good[part];
    }
    if (!all) return -1;
    int64_t n = line.begin(where);
    while (least(n) != best[where]) ++n;
    return n;
  }

  // Lists the tokens that may have a logit of `known` or more, ascending; returns how many.
  int64_t candidates(float known, int32_t *ids) const {
    int64_t counts[kParts];
    line.each_part(2, [&](int64_t part) {
      int32_t *own = ids + line.begin(part), *end = own;
      line.each_block(part, [&](const Register *x, int64_t k, int64_t lanes) TANDEM_FLAT {
        RegisterI32 high[kGroup], found = {};
        for (int i = 0; i < kGroup; ++i) {
          high[i] = (RegisterI32)(x[i] + radius(k + i * kRegister) >= known);
          found |= high[i];
        }
        if (!any(found)) return;
        for (int64_t i = 0; i < lanes; ++i)
          if (high[i / kRegister][i % kRegister]) *end++ = static_cast<int32_t>(k + i);
      });
      counts[part] = end - own;
    });
    int64_t count = counts[0];
    for (int64_t part = 1; part < line.parts(); ++part) {
      std::memmove(ids + count, ids + line.begin(part),
                   static_cast<size_t>(counts[part]) * sizeof *ids);
      count += counts[part];
    }
    return count;
  }
};

// The token of a row, or kNoId where it takes the whole head. Logits of candidates are put in the
// place of those by the screen.
inline int32_t token_of(const Shape &head, const Product &row, const Screened &screened,
                        int32_t *ids) {
  const Line &line = screened.line;
  const auto compute = [&](const int32_t *chosen, int64_t begin, int64_t end) {
    Panel panel;
    for (int64_t i = begin; i < end; ++i)
      some_columns<TANDEM_BF16>(head, row, chosen[i], chosen[i] + 1, panel);
  };
  const int32_t surest = static_cast<int32_t>(screened.surest());
  if (surest < 0) return kNoId;
  compute(&surest, 0, 1);
  const int64_t count = screened.candidates(line.x[surest], ids);
  if (count > line.vocab / 4) return kNoId;
  const auto share = [&](int64_t begin, int64_t end) { compute(ids, begin, end); };
  if (line.shared)
    parallel_for(count, head.row_bytes(), share);
  else
    share(0, count);
  int32_t best = ids[0];
  for (int64_t i = 1; i < count; ++i) best = line.x[ids[i]] > line.x[best] ? ids[i] : best;
  return best;
}

TANDEM_APART void multiply(const Shape &shape, const Product &product) {
  run_products(shape, 1, [&](int64_t) { return product; });
}

// The rows that are left, through the whole head.
inline void finish(const Shape &head, Product product, Item *rows, float *logits, int32_t *token) {
  int64_t left[kMostRows], count = 0;
  for (int64_t t = 0; t < product.rows; ++t) {
    if (token[t] != kNoId) continue;
    std::memmove(rows + count * head.stride(), rows + t * head.stride(),
                 static_cast<size_t>(head.stride()) * sizeof *rows);
    left[count++] = t;
  }
  product.rows = count;
  if (count) multiply(head, product);
  each_line(count, head.N, [&](int64_t i, bool shared) {
    const Line line(logits + i * head.N, head.N, shared);
    Distribution d = {};
    find_peak(line, d);
    token[left[i]] = d.valid ? static_cast<int32_t>(d.first) : -1;
  });
}

int32_t run(const uint16_t *x, const uint16_t *head, const uint8_t *codes, const uint8_t *scales,
            const float *bound, int32_t *token, float *logits, int32_t *ids, uint8_t *room,
            int64_t T, int64_t K, int64_t V) {
  if (T < 0 || T > kMostRows || K < 1 || K > 1 << 20 || V < 1 || V > 1 << 24)
    return TANDEM_BAD_SHAPE;
  if (T == 0) return TANDEM_OK;
  if (!x || !head || !codes || !scales || !bound || !token || !logits || !ids || !room)
    return TANDEM_NULL_POINTER;
  const Shape whole{TANDEM_BF16, K, V, true}, screen{TANDEM_FP8_BLOCK32, K, V, true};
  Item *rows = reinterpret_cast<Item *>(room);
  arrange_rows(whole, TANDEM_BF16, x, nullptr, T, K, 0, rows);
  uint8_t *y = reinterpret_cast<uint8_t *>(logits);
  multiply(screen, Product{rows, T, codes, scales, y, V});
  const Product product{rows, T, reinterpret_cast<const uint8_t *>(head), nullptr, y, V};
  each_line(T, 4 * V, [&](int64_t t, bool shared) {
    const Line line(logits + t * V, V, shared);
    Product row = product;
    row.x += t * whole.stride();
    row.y += t * V * static_cast<int64_t>(sizeof *logits);
    row.rows = 1;
    token[t] = token_of(whole, row, Screened{line, bound, length_of(x + t * K, K)}, ids + t * V);
  });
  finish(whole, product, rows, logits, token);
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::head_greedy

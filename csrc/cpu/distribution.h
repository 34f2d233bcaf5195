// The distribution that a row of logits is drawn from: its peak, what the filters leave, integer
// weights and sums; rules in docs/CONTRACT.md, "Sampling", the plain form in
// core/ops/_distribution.py.
//
// A row is cut into parts, at most 16, whose lengths depend on the vocabulary alone. Threads share
// the parts of a row where there are few rows, and rows where there are many; sums of parts are
// added in their order, so neither changes a bit.
#pragma once

#include <cfloat>
#include <cstdint>
#include <cstring>

#include "elementary.h"
#include "order.h"
#include "parallel.h"
#include "registers.h"
#include "rng.h"
#include "tandem.h"

namespace tandem::TANDEM_ISA {

constexpr float kGreedyBelow = 1e-5f;
constexpr int32_t kHeaviest = 1 << 30;  // weight of the likeliest token
constexpr int64_t kParts = 16, kLeastPart = 1024, kManyRows = 8;
constexpr int32_t kNoId = 0x7fffffff;            // above every token id
constexpr int64_t kVocabBlock = 64;              // tokens that are worked on together
constexpr int kGroup = kVocabBlock / kRegister;  // registers of them
#if defined(__AVX512F__)
constexpr RegisterI32 kLaneIds = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__)
constexpr RegisterI32 kLaneIds = {0, 1, 2, 3, 4, 5, 6, 7};
#else
constexpr RegisterI32 kLaneIds = {0, 1, 2, 3};
#endif

// Of the bodies of loops over vectors, whose sums must stay in registers.
#define TANDEM_FLAT __attribute__((always_inline))

// Sixteen sums in double.
struct WideSum {
  typedef float HalfRegister __attribute__((vector_size(kRegister / 2 * sizeof(float))));
  typedef double Doubles __attribute__((vector_size(kRegister / 2 * sizeof(double))));
  Doubles sums[kPartCount][2] = {};

  // Registers follow each other as the lanes do.
  TANDEM_INLINE void add(const Register &v, int number) {
    Doubles *to = sums[number % kPartCount];
#if defined(__AVX512F__)
    to[0] += (Doubles)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v));
    to[1] += (Doubles)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1));
#else
    HalfRegister halves[2];
    std::memcpy(halves, &v, sizeof v);
    to[0] += __builtin_convertvector(halves[0], Doubles);
    to[1] += __builtin_convertvector(halves[1], Doubles);
#endif
  }

  // Halves first, as `tree_sum` has it.
  TANDEM_INLINE double total() const {
    double s[kLanes];
    std::memcpy(s, sums, sizeof s);
    for (int i = 0; i < kLanes / 2; ++i) s[i] += s[i + kLanes / 2];
    const double a = s[0] + s[4], b = s[1] + s[5], c = s[2] + s[6], d = s[3] + s[7];
    return (a + c) + (b + d);
  }
};

// Sixteen sums of integers from 0 to 2^30, of up to 2^16 terms each.
struct WeightSum {
  RegisterU32 low[kPartCount] = {}, high[kPartCount] = {};

  TANDEM_INLINE void add(const RegisterI32 &w, int number) {
    low[number % kPartCount] += (RegisterU32)w & 0xffffu;
    high[number % kPartCount] += (RegisterU32)w >> 16;
  }

  TANDEM_INLINE int64_t total() const {
    int64_t sum = 0;
    for (int i = 0; i < kLanes; ++i) {
      const int at = i / kRegister, lane = i % kRegister;
      sum += (static_cast<int64_t>(high[at][lane]) << 16) + static_cast<int64_t>(low[at][lane]);
    }
    return sum;
  }
};

// A row and its parts.
struct Line {
  const float *x;
  int64_t vocab, length;
  bool shared;  // whether threads share the parts

  Line(const float *row, int64_t vocabulary, bool share)
      : x(row), vocab(vocabulary), length((vocabulary + kParts - 1) / kParts), shared(share) {
    length =
        length < kLeastPart ? kLeastPart : (length + kVocabBlock - 1) / kVocabBlock * kVocabBlock;
  }

  int64_t parts() const { return (vocab + length - 1) / length; }
  int64_t begin(int64_t part) const { return part * length; }
  int64_t end(int64_t part) const {
    return begin(part) + length < vocab ? begin(part) + length : vocab;
  }

  // body(part) for each part; `work`: operations of an element.
  template <typename Body>
  void each_part(int64_t work, const Body &body) const {
    const auto share = [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) body(part);
    };
    if (shared)
      parallel_for(parts(), work * length, share);
    else
      share(0, parts());
  }

  // visit(registers, the first id, the number of ids) over a part; ids that are missing hold
  // -inf.
  template <typename Visit>
  TANDEM_INLINE void each_block(int64_t part, const Visit &visit) const {
    const int64_t last = end(part);
    int64_t k = begin(part);
    Register block[kGroup];
    for (; k + kVocabBlock <= last; k += kVocabBlock) {
      for (int i = 0; i < kGroup; ++i) block[i] = load_register(x + k + i * kRegister);
      visit(block, k, kVocabBlock);
    }
    if (k == last) return;
    float padded[kVocabBlock];
    for (int64_t i = 0; i < kVocabBlock; ++i)
      padded[i] = k + i < last ? x[k + i] : -__builtin_inff();
    for (int i = 0; i < kGroup; ++i) block[i] = load_register(padded + i * kRegister);
    visit(block, k, last - k);
  }
};

// body(row, shared): few rows one after another, each shared by the threads; many rows dealt to
// them.
template <typename Body>
void each_line(int64_t rows, int64_t work, const Body &body) {
  if (rows < kManyRows) {
    for (int64_t row = 0; row < rows; ++row) body(row, true);
    return;
  }
  parallel_for(rows, work, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) body(row, false);
  });
}

// What a row is drawn from. Where it is not valid, nothing else is set.
struct Distribution {
  bool valid, greedy, filters;
  float peak, inverse;  // maximum, 1 / temperature
  int64_t first;        // lowest id of the maximum
  float bound;          // kept are logits above it, and at it ids up to `last`, of weight `least`
  int32_t last, least;
  int32_t favourite;  // lowest id of weight 2^30 that is kept
  int64_t weight[kParts], total;
  double others,
      all;  // sums of exponentials of kept tokens and of all raw logits, `first` left out

  TANDEM_INLINE Register scaled(const Register &x) const {
    const Register raw = x - peak;
    return raw < -FLT_MAX ? raw : raw * inverse;  // an inverse of 0 leaves -inf
  }
  TANDEM_INLINE float scaled(float x) const { return scaled(all_lanes(x))[0]; }

  TANDEM_INLINE bool keeps(float x, int64_t id) const {
    if (!filters) return true;
    const int32_t w = static_cast<int32_t>(exp_negative(scaled(x)) * 0x1p30f);
    return w >= least && (x > bound || (x == bound && id <= last));
  }

  // Exponentials and weights of a block, 0 where the filters remove a token.
  TANDEM_INLINE void weigh(const Register *x, int64_t k, Register *power,
                           RegisterI32 *weight) const {
    Register d[kGroup];
    for (int i = 0; i < kGroup; ++i) d[i] = scaled(x[i]);
    exp_negative<kGroup>(d, power);
    for (int i = 0; i < kGroup; ++i) {
      weight[i] = __builtin_convertvector(power[i] * 0x1p30f, RegisterI32);
      if (!filters) continue;
      const RegisterI32 stays = kept(x[i], k + i * kRegister, weight[i]);
      weight[i] &= stays;
      power[i] = (Register)((RegisterI32)power[i] & stays);
    }
  }

  // The weights alone.
  TANDEM_INLINE void weigh(const Register *x, int64_t k, int32_t *to) const {
    RegisterI32 weight[kGroup] = {};
    Register power[kGroup];
    if (reaches(x)) weigh(x, k, power, weight);
    std::memcpy(to, weight, sizeof weight);
  }

  // The lanes that the filters keep.
  TANDEM_INLINE RegisterI32 kept(const Register &x, int64_t k, const RegisterI32 &weight) const {
    const RegisterI32 ids = kLaneIds + static_cast<int32_t>(k);
    return (RegisterI32)((x > bound) | ((x == bound) & (ids <= last))) &
           (RegisterI32)(weight >= least);
  }

  // Whether the filters may keep any of a block.
  TANDEM_INLINE bool reaches(const Register *x) const {
    if (!filters) return true;
    RegisterI32 high = x[0] >= bound;
    for (int i = 1; i < kGroup; ++i) high |= x[i] >= bound;
    return any(high);
  }

  double log_kept() const { return log1p_double(others); }
  double log_all() const { return log1p_double(all); }
};

// The maximum of a row, the lowest id that has it, and whether there is no NaN and it is finite.
inline void find_peak(const Line &line, Distribution &d) {
  float best[kParts] = {};
  int32_t size[kParts] = {};
  line.each_part(1, [&](int64_t part) {
    constexpr int kFew = 4;  // registers that wait for each other
    Register most[kFew];
    RegisterI32 largest[kFew] = {};
    for (Register &one : most) one = all_lanes(-__builtin_inff());
    line.each_block(part, [&](const Register *x, int64_t, int64_t) TANDEM_FLAT {
      for (int i = 0; i < kGroup; ++i) {
        Register &high = most[i % kFew];
        RegisterI32 &large = largest[i % kFew];
        high = x[i] > high ? x[i] : high;
        const RegisterI32 magnitude = (RegisterI32)x[i] & 0x7fffffff;  // above infinity: NaN
        large = magnitude > large ? magnitude : large;
      }
    });
    best[part] = most[0][0];
    size[part] = largest[0][0];
    for (int i = 0; i < kFew * kRegister; ++i) {
      const float x = most[i / kRegister][i % kRegister];
      const int32_t magnitude = largest[i / kRegister][i % kRegister];
      best[part] = x > best[part] ? x : best[part];
      size[part] = magnitude > size[part] ? magnitude : size[part];
    }
  });
  int64_t where = 0;
  int32_t top = size[0];
  for (int64_t part = 1; part < line.parts(); ++part) {
    where = best[part] > best[where] ? part : where;
    top = size[part] > top ? size[part] : top;
  }
  d.peak = best[where] + 0.0f;  // -0 becomes +0
  d.valid = top <= 0x7f800000 && d.peak <= FLT_MAX && d.peak >= -FLT_MAX;
  if (!d.valid) return;
  d.first = line.begin(where);
  while (line.x[d.first] != d.peak) ++d.first;
}

// Takes an id, which may lie in it, out of a block.
TANDEM_INLINE void take_out(Register *v, int64_t k, int64_t id) {
  if (id < k || id >= k + kVocabBlock) return;
  const int32_t place = static_cast<int32_t>(id - k);
  for (int i = 0; i < kGroup; ++i)
    v[i] = (Register)((RegisterI32)v[i] & (RegisterI32)(kLaneIds + i * kRegister != place));
}

// The lowest ids by lane that have weight 2^30, of a block and what came before.
TANDEM_INLINE void note_heaviest(const RegisterI32 *weight, int64_t k, RegisterI32 *lowest) {
  RegisterI32 found = {};
  for (int i = 0; i < kGroup; ++i) found |= (RegisterI32)(weight[i] == kHeaviest);
  if (!any(found)) return;
  for (int i = 0; i < kGroup; ++i) {
    const RegisterI32 ids = kLaneIds + (static_cast<int32_t>(k) + i * kRegister);
    *lowest = (weight[i] == kHeaviest) & (ids < *lowest) ? ids : *lowest;
  }
}

// Sums over what is kept, and of the exponentials of all raw logits where they are wanted.
inline void sum_parts(const Line &line, Distribution &d, bool with_all) {
  double others[kParts], all[kParts];
  int32_t favourite[kParts];
  const bool apart = with_all && (d.filters || d.inverse != 1.0f);
  line.each_part(apart ? 8 : 4, [&](int64_t part) {
    WeightSum weight;
    WideSum kept_sum, all_sum;
    RegisterI32 lowest = kNoId + RegisterI32{};
    line.each_block(part, [&](const Register *x, int64_t k, int64_t) TANDEM_FLAT {
      Register power[kGroup];
      if (d.reaches(x)) {
        RegisterI32 w[kGroup];
        d.weigh(x, k, power, w);
        for (int i = 0; i < kGroup; ++i) weight.add(w[i], i);
        note_heaviest(w, k, &lowest);
        take_out(power, k, d.first);
        for (int i = 0; i < kGroup; ++i) kept_sum.add(power[i], i);
      }
      if (!apart) return;
      Register raw[kGroup];
      for (int i = 0; i < kGroup; ++i) raw[i] = x[i] - d.peak;
      exp_negative<kGroup>(raw, power);
      take_out(power, k, d.first);
      for (int i = 0; i < kGroup; ++i) all_sum.add(power[i], i);
    });
    d.weight[part] = weight.total();
    others[part] = kept_sum.total();
    all[part] = apart ? all_sum.total() : others[part];
    favourite[part] = lowest[0];
    for (int i = 1; i < kRegister; ++i)
      favourite[part] = lowest[i] < favourite[part] ? lowest[i] : favourite[part];
  });
  for (int64_t part = 0; part < line.parts(); ++part) {
    d.total += d.weight[part];
    d.others += others[part];
    d.all += all[part];
    d.favourite = favourite[part] < d.favourite ? favourite[part] : d.favourite;
  }
}

}  // namespace tandem::TANDEM_ISA

// Where min-p, top-p and top-k cut a row of logits, found without sorting it.
//
// The filters keep a prefix of the order (logit descending, id ascending): the logits above a bound
// and, of the tokens at the bound itself, the first few by id. A first pass sums weight and number
// of tokens by value, a twelfth of a nat each; of the bin in which the filters begin to remove,
// further passes look at the bits of its logits, until few tokens are left to be sorted, or all of
// them are equal. Sums are integers, so their order is free.
#pragma once

#include "distribution.h"

namespace tandem::TANDEM_ISA {

constexpr int kBins = 256;
constexpr float kBinsOfNat = 12.0f;  // 21 nats below the maximum a weight is 0
constexpr int64_t kFew = 1024;       // that are sorted

struct Bins {
  int64_t weight[kBins], count[kBins];

  void clear() {
    for (int bin = 0; bin < kBins; ++bin) weight[bin] = count[bin] = 0;
  }
};

// The numbers of a row: arrays by row, min_p NULL for none; filtered 0 says that all filters are
// off.
struct Numbers {
  const float *temperature, *top_p;
  const int32_t *top_k;
  const float *min_p;
  bool filtered;
};

class Search {
 public:
  Search(const Line &line, Distribution &row, int64_t share, int32_t top_k)
      : line_(line), row_(row), share_(share), most_(top_k < 1 ? INT64_MAX : top_k) {}

  // Sets the bound of the row.
  void run() {
    Bins bins;
    bin_values(bins);
    int64_t total = 0;
    for (int bin = 0; bin < kBins; ++bin) total += bins.weight[bin];
    limit_ = part_of(share_, total);
    const int bin = enter(bins);
    if (bin == kBins) return;  // everything is kept
    hi_ = highest(bin);
    lo_ = bin + 1 < kBins ? highest(bin + 1) : kLowestImage - 1;
    while (number_ > kFew && hi_ - lo_ > 1) bin_images(bins);
    if (number_ > kFew)
      cut_plateau();
    else
      cut_few();
  }

 private:
  // Bins of scaled logits: 0 at the maximum.
  TANDEM_INLINE RegisterI32 value_bin(const Register &x) const {
    const Register place = row_.scaled(x) * -kBinsOfNat, top = all_lanes(kBins - 1);
    return __builtin_convertvector(place < top ? place : top, RegisterI32);
  }

  // Weights as min-p leaves them, of a block.
  TANDEM_INLINE void heavy(const Register *x, int32_t *to) const {
    Register d[kGroup], power[kGroup];
    RegisterI32 w[kGroup];
    for (int i = 0; i < kGroup; ++i) d[i] = row_.scaled(x[i]);
    exp_negative<kGroup>(d, power);
    for (int i = 0; i < kGroup; ++i) {
      w[i] = __builtin_convertvector(power[i] * 0x1p30f, RegisterI32);
      w[i] &= (RegisterI32)(w[i] >= row_.least);
    }
    std::memcpy(to, w, sizeof w);
  }

  int32_t heavy(float x) const {
    const int32_t w = static_cast<int32_t>(exp_negative(row_.scaled(x)) * 0x1p30f);
    return w >= row_.least ? w : 0;
  }

  // Weight and number by value. Both lie in one word, so that a token costs one addition; four
  // tables keep neighbours from waiting for each other.
  void bin_values(Bins &bins) const {
    constexpr int64_t kRun = 8192;  // tokens after which a word might run over
    Bins of_part[kParts];
    line_.each_part(6, [&](int64_t part) {
      uint64_t words[4][kBins] = {};
      Bins &own = of_part[part];
      own.clear();
      const auto unload = [&] {
        for (int bin = 0; bin < kBins; ++bin)
          for (auto &table : words) {
            own.weight[bin] += static_cast<int64_t>(table[bin] & ((uint64_t{1} << 44) - 1));
            own.count[bin] += static_cast<int64_t>(table[bin] >> 44);
            table[bin] = 0;
          }
      };
      line_.each_block(part, [&](const Register *x, int64_t k, int64_t count) TANDEM_FLAT {
        RegisterI32 bin[kGroup], high = {};
        for (int i = 0; i < kGroup; ++i) {
          bin[i] = value_bin(x[i]);
          high |= (RegisterI32)(bin[i] < kBins - 1);
        }
        if (!any(high)) {
          words[0][kBins - 1] += static_cast<uint64_t>(count) << 44;
        } else {
          int32_t w[kVocabBlock], place[kVocabBlock];
          heavy(x, w);
          std::memcpy(place, bin, sizeof place);
          for (int i = 0; i < count; ++i)
            words[i % 4][place[i]] += (uint64_t{1} << 44) + static_cast<uint64_t>(w[i]);
        }
        if ((k - line_.begin(part)) % kRun == kRun - kVocabBlock) unload();
      });
      unload();
    });
    bins.clear();
    for (int64_t part = 0; part < line_.parts(); ++part)
      for (int bin = 0; bin < kBins; ++bin) {
        bins.weight[bin] += of_part[part].weight[bin];
        bins.count[bin] += of_part[part].count[bin];
      }
  }

  // Passes bins that are kept whole; returns the one in which the cut lies.
  int enter(const Bins &bins) {
    for (int bin = 0; bin < kBins; ++bin) {
      const int64_t weight = bins.weight[bin], count = bins.count[bin];
      if (above_ + weight > limit_ || before_ + count > most_) {
        number_ = count;
        weight_ = weight;
        return bin;
      }
      above_ += weight;
      before_ += count;
    }
    return kBins;
  }

  // The highest image of a bin of values, or of those below: bins only rise as logits fall.
  int32_t highest(int bin) const {
    int64_t low = kLowestImage, high = image(row_.peak);  // at `low` the bin is the last one
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (value_bin(all_lanes(preimage(static_cast<int32_t>(middle))))[0] >= bin)
        low = middle;
      else
        high = middle - 1;
    }
    return static_cast<int32_t>(low);
  }

  // visit(image, id, weight) over the tokens of the bracket, images above lo and up to hi.
  template <typename Visit>
  TANDEM_INLINE void each_inside(const Visit &visit) const {
    const int32_t lo = static_cast<int32_t>(lo_), hi = static_cast<int32_t>(hi_);
    for (int64_t part = 0; part < line_.parts(); ++part)
      line_.each_block(part, [&](const Register *x, int64_t k, int64_t count) TANDEM_FLAT {
        RegisterI32 key[kGroup], inside = {};
        for (int i = 0; i < kGroup; ++i) {
          key[i] = image(x[i]);
          inside |= (RegisterI32)(key[i] > lo) & (RegisterI32)(key[i] <= hi);
        }
        if (!any(inside)) return;
        int32_t w[kVocabBlock], keys[kVocabBlock];
        heavy(x, w);
        std::memcpy(keys, key, sizeof keys);
        for (int i = 0; i < count; ++i)
          if (keys[i] > lo && keys[i] <= hi) visit(keys[i], k + i, int64_t{w[i]});
      });
  }

  // Narrows the bracket to one of 256 parts of it.
  void bin_images(Bins &bins) {
    int shift = 0;
    while ((hi_ - lo_ - 1) >> shift >= kBins) ++shift;
    bins.clear();
    each_inside([&](int32_t key, int64_t, int64_t weight) TANDEM_FLAT {
      const int64_t bin = (hi_ - key) >> shift;
      bins.weight[bin] += weight;
      ++bins.count[bin];
    });
    const int bin = enter(bins);  // the cut lies in the bracket
    hi_ -= static_cast<int64_t>(bin) << shift;
    const int64_t below = hi_ - (int64_t{1} << shift);
    lo_ = below > lo_ ? below : lo_;
  }

  void set(float bound, int64_t last) {
    row_.bound = bound;
    row_.last = static_cast<int32_t>(last);
  }

  // Keeps what lies above the bracket alone.
  void cut_above() { set(preimage(static_cast<int32_t>(hi_ + 1)), kNoId); }

  // Of equal tokens the first ones by id.
  void cut_plateau() {
    const int64_t each = weight_ / number_;
    const int64_t room = each > 0 ? (limit_ - above_) / each + 1 : number_;
    int64_t keep = room < most_ - before_ ? room : most_ - before_;
    if (keep <= 0) return cut_above();
    int64_t last = kNoId;
    each_inside([&](int32_t, int64_t id, int64_t) {
      if (--keep == 0) last = id;
    });
    set(preimage(static_cast<int32_t>(hi_)), last);
  }

  void cut_few() {
    uint64_t items[kFew];
    int64_t count = 0;
    each_inside([&](int32_t key, int64_t id, int64_t) {
      if (count < kFew) items[count++] = place_key(key, id);
    });
    sort_descending(items, count);
    int64_t kept = 0;
    for (; kept < count && above_ <= limit_ && before_ < most_; ++kept, ++before_)
      above_ += heavy(preimage(key_image(items[kept])));
    if (kept == 0) return cut_above();
    set(preimage(key_image(items[kept - 1])), key_index(items[kept - 1]));
  }

  const Line &line_;
  Distribution &row_;
  const int64_t share_, most_;
  int64_t limit_ = 0;                // weight before a token up to which it is kept
  int64_t above_ = 0, before_ = 0;   // weight and number of tokens above the bracket
  int64_t weight_ = 0, number_ = 0;  // of those in it
  int64_t lo_ = 0, hi_ = 0;          // images of the bracket
};

// All of a row's distribution; `with_all`: its raw logits too.
inline Distribution measure(const Line &line, const Numbers &numbers, int64_t row, bool with_all) {
  Distribution d = {};
  const float temperature = numbers.temperature[row];
  find_peak(line, d);
  d.valid = d.valid && temperature == temperature;
  if (!d.valid) return d;
  d.greedy = temperature < kGreedyBelow;
  d.inverse = d.greedy ? 1.0f : 1.0f / temperature;
  d.favourite = kNoId;
  d.bound = -__builtin_inff();
  d.last = kNoId;
  if (d.greedy) {
    d.filters = true;
    d.bound = d.peak;
    d.last = static_cast<int32_t>(d.first);
  } else if (numbers.filtered) {
    const int64_t share = of_32_bits(numbers.top_p[row]);
    const int64_t edge = numbers.min_p ? of_32_bits(numbers.min_p[row]) : 0;
    const bool cuts = share < int64_t{1} << 32 || numbers.top_k[row] > 0;
    d.least = static_cast<int32_t>((edge + 3) >> 2);  // 4 w >= edge
    d.filters = cuts || d.least > 0;
    if (cuts) Search(line, d, share, numbers.top_k[row]).run();
  }
  sum_parts(line, d, with_all);
  return d;
}

}  // namespace tandem::TANDEM_ISA

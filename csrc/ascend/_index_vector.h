// The vector cores' side of index scores: keys to L1, and products back to scores, the heads of a
// key added one after another.
#pragma once

#include "_index_feed.h"

namespace tandem {

constexpr float kHidden = -__builtin_inff();

__simd_vf__ inline void widen_weights(Ub<bfloat16_t> from, Ub<float> to, uint32_t count) {
  Reg::RegTensor<float> value;
  const uint16_t steps = rows::rounds(count);
  for (uint16_t i = 0; i < steps; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(count);
    rows::load(value, from + i * rows::kStep, mask);
    Reg::StoreAlign(to + i * rows::kStep, value, mask);
  }
}

// Products [heads, kHalfKeys] of one row to `count` scores. Visible are the entries of a list that
// are none of -1, else the first `seen`.
template <bool listed>
__simd_vf__ inline void add_heads(Ub<float> products, Ub<float> weights, Ub<int32_t> entries,
                                  Ub<bfloat16_t> scores, uint32_t heads, uint32_t count,
                                  uint32_t seen) {
  Reg::RegTensor<float> low, high, low_sum, high_sum, weight, hidden;
  Reg::RegTensor<int32_t> low_entry, high_entry;
  Reg::MaskReg low_some = Reg::UpdateMask<float>(count), high_some = Reg::UpdateMask<float>(count);
  Reg::MaskReg low_seen = Reg::UpdateMask<float>(seen), high_seen = Reg::UpdateMask<float>(seen);
  Reg::Duplicate(low_sum, 0.0f);
  Reg::Duplicate(high_sum, 0.0f);
  for (uint16_t head = 0; head < uint16_t(heads); ++head) {
    Reg::LoadAlign(low, products + head * kHalfKeys);
    Reg::LoadAlign(high, products + (head * kHalfKeys + rows::kStep));
    Reg::LoadAlign<float, Reg::LoadDist::DIST_BRC_B32>(weight, weights + head);
    Reg::Maxs(low, low, 0.0f, low_some);
    Reg::Maxs(high, high, 0.0f, high_some);
    Reg::Mul(low, low, weight, low_some);
    Reg::Mul(high, high, weight, high_some);
    Reg::Add(low_sum, low_sum, low, low_some);
    Reg::Add(high_sum, high_sum, high, high_some);
  }
  if constexpr (listed) {
    Reg::LoadAlign(low_entry, entries);
    Reg::LoadAlign(high_entry, entries + rows::kStep);
    Reg::Compares<int32_t, AscendC::CMPMODE::GE>(low_seen, low_entry, 0, low_some);
    Reg::Compares<int32_t, AscendC::CMPMODE::GE>(high_seen, high_entry, 0, high_some);
  }
  Reg::Duplicate(hidden, kHidden);
  Reg::Select(low_sum, low_sum, hidden, low_seen);
  Reg::Select(high_sum, high_sum, hidden, high_seen);
  rows::store(scores, low_sum, low_some);
  rows::store(scores + rows::kStep, high_sum, high_some);
}

__simd_vf__ inline void hide(Ub<bfloat16_t> scores, uint32_t count) {
  Reg::RegTensor<float> hidden;
  Reg::Duplicate(hidden, kHidden);
  const uint16_t steps = rows::rounds(count);
  for (uint16_t i = 0; i < steps; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(count);
    rows::store(scores + i * rows::kStep, hidden, mask);
  }
}

class IndexVector {
 public:
  __aicore__ explicit inline IndexVector(const IndexShape &shape)
      : shape_(shape),
        ub_(shape.lines(), shape.most_lines(), shape.tile_rows),
        feed_(shape.lines(), ub_.lines) {}

  __aicore__ inline void begin() const {
    feed_.begin();
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(kWeightsFlag);
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
      AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kResultsFlag + i);
    }
  }
  __aicore__ inline void end() const {
    feed_.end();
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(kWeightsFlag);
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kResultsFlag + i);
    }
  }

  // Scores of a group. `queries`: of its first row; `lens`: visible entries of each row, not used
  // of listed ones.
  template <class Keys>
  __aicore__ inline void run(const RowGroup &group, const Lines &queries, Gm<bfloat16_t> weights,
                             Gm<uint8_t> cache, const Keys &keys, Gm<int32_t> lens,
                             Gm<bfloat16_t> out) {
    out_ = out;
    const uint32_t chunks = chunks_of_keys(group.seen);
    if (chunks > 0) {
      feed_.bring_queries(queries, group.count * shape_.heads);
      load_weights(weights, group.count * shape_.heads);
      feed_.bring_keys(cache, keys, 0, chunk_keys(group.span(), 0));
    }
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      if (chunk + 1 < chunks)
        feed_.bring_keys(cache, keys, (chunk + 1) * kKeys, chunk_keys(group.span(), chunk + 1));
      score(group, keys, lens, chunk);
    }
    const uint32_t all = chunks_of_keys(group.span());
    for (uint32_t chunk = chunks; chunk < all; ++chunk)
      hide_keys(group, group.begin + chunk * kKeys, chunk_keys(group.span(), chunk));
  }

 private:
  static constexpr int32_t kWeightsFlag = 2, kResultsFlag = 2;
  const IndexShape shape_;
  const UbLayout ub_;
  LineFeed feed_;
  Gm<bfloat16_t> out_;
  uint32_t chunks_ = 0, stores_ = 0;

  // Columns of a chunk that this core scores.
  struct Half {
    uint32_t first, count;
  };
  __aicore__ static inline Half half_of(uint32_t count) {
    const uint32_t lines = half_lines(count), first = uint32_t(AscendC::GetSubBlockIdx()) * lines;
    const uint32_t left = count < first ? 0 : count - first;
    return {first, left < lines ? left : lines};
  }

  template <class T>
  __aicore__ inline AscendC::LocalTensor<T> buffer(uint32_t offset, uint32_t bytes) const {
    return AscendC::LocalTensor<T>(AscendC::TPosition::VECCALC, offset, bytes / sizeof(T));
  }
  __aicore__ inline AscendC::LocalTensor<float> products(uint32_t which) const {
    const uint32_t bytes = 4 * shape_.most_lines() * kHalfKeys;
    return buffer<float>(ub_.scores + which * bytes, bytes);
  }
  __aicore__ inline AscendC::LocalTensor<bfloat16_t> results(uint32_t which) const {
    const uint32_t bytes = 2 * shape_.tile_rows * kHalfKeys;
    return buffer<bfloat16_t>(ub_.results + which * bytes, bytes);
  }
  __aicore__ inline AscendC::LocalTensor<int32_t> entries(uint32_t which) const {
    return buffer<int32_t>(ub_.entries + which * 4 * kHalfKeys, 4 * kHalfKeys);
  }
  __aicore__ inline AscendC::LocalTensor<float> weights() const {
    return buffer<float>(ub_.weights, ub_.lines - ub_.weights);
  }

  __aicore__ inline void load_weights(Gm<bfloat16_t> from, uint32_t count) const {
    const AscendC::LocalTensor<bfloat16_t> narrow =
        buffer<bfloat16_t>(ub_.narrow, ub_.weights - ub_.narrow);
    AscendC::GlobalTensor<bfloat16_t> source;
    source.SetGlobalBuffer(from);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(kWeightsFlag);
    rows::load_row(narrow, source, 0, count);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(kWeightsFlag);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(kWeightsFlag);
    asc_vf_call<widen_weights>(Ub<bfloat16_t>(narrow.GetPhyAddr()),
                               Ub<float>(weights().GetPhyAddr()), count);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(kWeightsFlag);
  }

  template <class Keys>
  __aicore__ inline void score(const RowGroup &group, const Keys &keys, Gm<int32_t> lens,
                               uint32_t chunk) {
    const uint32_t which = chunks_++ % 2, count = chunk_keys(group.span(), chunk);
    const Half half = half_of(count);
    const uint32_t start = group.begin + chunk * kKeys;
    if constexpr (Keys::kListed) load_entries(keys.entries + chunk * kKeys, half, which);
    AscendC::CrossCoreWaitFlag<2, PIPE_V>(kScoresReady + which);
    const uint32_t place = next_results();
    for (uint32_t row = 0; row < group.count; ++row) {
      uint32_t seen = half.count;
      if constexpr (!Keys::kListed) {
        const int32_t sees = lens[row] - int32_t(start + half.first);
        seen = sees < 0 ? 0 : uint32_t(sees);
      }
      asc_vf_call<add_heads<Keys::kListed>>(
          Ub<float>(products(which)[row * shape_.heads * kHalfKeys].GetPhyAddr()),
          Ub<float>(weights()[row * shape_.heads].GetPhyAddr()),
          Ub<int32_t>(entries(which).GetPhyAddr()),
          Ub<bfloat16_t>(results(place)[row * kHalfKeys].GetPhyAddr()), shape_.heads, half.count,
          seen);
    }
    if constexpr (Keys::kListed) AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(which);
    AscendC::CrossCoreSetFlag<2, PIPE_V>(kScoresFree + which);
    store(group, start, half, place);
  }

  __aicore__ inline void load_entries(Gm<int32_t> from, const Half &half, uint32_t which) const {
    AscendC::GlobalTensor<int32_t> source;
    source.SetGlobalBuffer(from);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(which);
    if (half.count > 0) rows::load_row(entries(which), source, half.first, half.count);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(which);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(which);
  }

  __aicore__ inline void hide_keys(const RowGroup &group, uint32_t start, uint32_t count) {
    const Half half = half_of(count);
    const uint32_t place = next_results();
    for (uint32_t row = 0; row < group.count; ++row)
      asc_vf_call<hide>(Ub<bfloat16_t>(results(place)[row * kHalfKeys].GetPhyAddr()), half.count);
    store(group, start, half, place);
  }

  __aicore__ inline uint32_t next_results() {
    const uint32_t place = stores_++ % 2;
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(kResultsFlag + place);
    return place;
  }

  __aicore__ inline void store(const RowGroup &group, uint32_t start, const Half &half,
                               uint32_t place) const {
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(kResultsFlag + place);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(kResultsFlag + place);
    AscendC::GlobalTensor<bfloat16_t> to;
    to.SetGlobalBuffer(out_);
    if (half.count > 0)
      for (uint32_t row = 0; row < group.count; ++row)
        rows::store_row(to, int64_t(group.first + row) * shape_.width + start + half.first,
                        results(place)[row * kHalfKeys], half.count);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(kResultsFlag + place);
  }
};

}  // namespace tandem

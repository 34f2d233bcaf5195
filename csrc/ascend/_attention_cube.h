// The cube core's side of attention: scores of a chunk of entries, then weights times entries.
//
// L1 holds the queries of a task, two chunks of entries, and the weights of a chunk. Scores and
// outputs go to UB of the two vector cores, each of which has half of the heads. The scores of a
// chunk are made before the outputs of the one before it, while the vector cores weigh that one.
#pragma once

#include "_gather.h"
#include "_l0.h"

namespace tandem {

// Flags between the cores: scores and outputs lie in UB, weights in L1, and so do queries if the
// vector cores bring them.
constexpr uint16_t kScoresReady = 4, kWeightsOfChunk = 5, kOutputReady = 6, kQueriesReady = 7,
                   kQueriesFree = 8;
constexpr AscendC::FixpipeConfig kRowsToUb = {AscendC::CO2Layout::ROW_MAJOR, true};

// Heads of a task; the first vector core has the larger half.
struct Heads {
  uint32_t count;
  __aicore__ inline uint32_t first_half() const { return (count + 1) / 2; }
  __aicore__ inline uint32_t of(uint32_t sub_block) const {
    return sub_block == 0 ? first_half() : count - first_half();
  }
};

// Where scores, of two chunks, and outputs, of one, go in UB.
struct UbPlan {
  uint32_t scores, scores_bytes, output, output_bytes;
};

class AttentionCube {
 public:
  __aicore__ inline AttentionCube(uint32_t dim, uint32_t most_heads, uint32_t l0_bytes,
                                  const UbPlan &ub, bool queries_are_brought)
      : dim_(dim),
        most_(align_to(most_heads, kFractalRows)),
        l0_(l0_bytes),
        ub_(ub),
        brought_(queries_are_brought) {}

  // L1: entries first, where the vector cores lay them.
  __aicore__ static inline uint32_t entries_base() { return 0; }
  TANDEM_SHARED static inline uint32_t weights_base(uint32_t dim) { return 2 * 2 * kChunk * dim; }
  TANDEM_SHARED static inline uint32_t queries_base(uint32_t dim, uint32_t most_heads) {
    return weights_base(dim) + 2 * align_to(most_heads, kFractalRows) * kChunk;
  }

  __aicore__ inline void begin() {
    AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(EVENT_ID0);
    for (int32_t i = 0; i < 3; ++i) AscendC::SetFlag<AscendC::HardEvent::FIX_M>(i);
    l0_.begin();
  }
  __aicore__ inline void end() {
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(EVENT_ID0);
    for (int32_t i = 0; i < 3; ++i) AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(i);
    l0_.end();
  }

  // One row's heads, [heads, dim], over so many chunks; q is not looked at if vector cores bring
  // it.
  __aicore__ inline void run(Gm<bfloat16_t> q, Heads heads, uint32_t chunks) {
    heads_ = heads;
    take_queries(q);
    score(before_ % 2);
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      if (chunk + 1 < chunks)
        score((before_ + chunk + 1) % 2);
      else
        leave_queries();
      combine((before_ + chunk) % 2);
    }
    before_ += chunks;
  }

 private:
  const uint32_t dim_, most_;
  L0Steps l0_;
  const UbPlan ub_;
  const bool brought_;
  Heads heads_{0};
  uint32_t before_ = 0;  // chunks of tasks before this one

  __aicore__ inline AscendC::LocalTensor<bfloat16_t> entries(uint32_t which) const {
    return AscendC::LocalTensor<bfloat16_t>(AscendC::TPosition::B1, which * 2 * kChunk * dim_,
                                            kChunk * dim_);
  }
  __aicore__ inline AscendC::LocalTensor<bfloat16_t> weights() const {
    return AscendC::LocalTensor<bfloat16_t>(AscendC::TPosition::A1, weights_base(dim_),
                                            most_ * kChunk);
  }
  __aicore__ inline AscendC::LocalTensor<bfloat16_t> queries() const {
    return AscendC::LocalTensor<bfloat16_t>(AscendC::TPosition::A1, queries_base(dim_, most_),
                                            most_ * dim_);
  }
  // L0C: scores of two chunks first, then outputs.
  __aicore__ inline AscendC::LocalTensor<float> scores(uint32_t which) const {
    return AscendC::LocalTensor<float>(AscendC::TPosition::CO1, which * 4 * most_ * kChunk,
                                       most_ * kChunk);
  }
  __aicore__ inline AscendC::LocalTensor<float> outputs() const {
    return AscendC::LocalTensor<float>(AscendC::TPosition::CO1, 2 * 4 * most_ * kChunk,
                                       most_ * dim_);
  }
  __aicore__ inline void take_queries(Gm<bfloat16_t> q) const {
    if (brought_)
      AscendC::CrossCoreWaitFlag<2, PIPE_MTE1>(kQueriesReady);
    else
      copy_queries(q);
  }
  __aicore__ inline void leave_queries() const {
    if (brought_)
      AscendC::CrossCoreSetFlag<2, PIPE_MTE1>(kQueriesFree);
    else
      AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(EVENT_ID0);
  }
  __aicore__ inline void copy_queries(Gm<bfloat16_t> q) const {
    AscendC::GlobalTensor<bfloat16_t> source;
    source.SetGlobalBuffer(q);
    AscendC::Nd2NzParams params;
    params.ndNum = 1;
    params.nValue = heads_.count;
    params.dValue = dim_;
    params.srcNdMatrixStride = 0;
    params.srcDValue = dim_;
    params.dstNzC0Stride = align_to(heads_.count, kFractalRows);
    params.dstNzNStride = 1;
    params.dstNzMatrixStride = 0;
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(EVENT_ID0);
    AscendC::DataCopy(queries(), source, params);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(EVENT_ID0);
  }

  // Scores [heads, chunk] of queries and entries.
  __aicore__ inline void score(uint32_t which) {
    const uint32_t most = l0_.step(most_ < kChunk ? kChunk : most_);
    AscendC::CrossCoreWaitFlag<2, PIPE_MTE1>(kEntriesReady + which);
    for (uint32_t start = 0; start < dim_; start += most) {
      const uint32_t count = dim_ - start < most ? dim_ - start : most;
      l0_.next();
      l0_.load_left(queries(), heads_.count, start, count);
      l0_.load_right(entries(which), kChunk, start, count, false);
      if (start == 0) AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(which);
      l0_.multiply(scores(which), heads_.count, kChunk, count, start == 0);
    }
    hand_over(scores(which), kChunk, ub_.scores + which * ub_.scores_bytes, ub_.scores_bytes,
              which);
    AscendC::CrossCoreSetFlag<2, PIPE_FIX>(kScoresReady);
  }

  // Outputs [heads, dim]: weights times entries.
  __aicore__ inline void combine(uint32_t which) {
    const uint32_t most = l0_.step(kChunk), rows = align_to(heads_.count, kFractalRows);
    AscendC::CrossCoreWaitFlag<2, PIPE_MTE1>(kWeightsOfChunk);
    for (uint32_t start = 0; start < dim_; start += most) {
      const uint32_t count = dim_ - start < most ? dim_ - start : most;
      l0_.next();
      l0_.load_left(weights(), heads_.count, 0, kChunk);
      l0_.load_right(entries(which), kChunk, start, count, true);
      if (start == 0) AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(EVENT_ID2);
      l0_.multiply(outputs()[rows * start], heads_.count, count, kChunk, true);
    }
    AscendC::CrossCoreSetFlag<2, PIPE_MTE1>(kEntriesFree + which);
    hand_over(outputs(), dim_, ub_.output, ub_.output_bytes, EVENT_ID2);
    AscendC::CrossCoreSetFlag<2, PIPE_FIX>(kOutputReady);
  }

  // Rows of each vector core's heads to its UB.
  __aicore__ inline void hand_over(const AscendC::LocalTensor<float> &from, uint32_t columns,
                                   uint32_t offset, uint32_t bytes, int32_t event) const {
    AscendC::SetFlag<AscendC::HardEvent::M_FIX>(event);
    AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(event);
    const AscendC::LocalTensor<float> to(AscendC::TPosition::VECCALC, offset, bytes / 4);
    for (uint32_t sub = 0; sub < 2; ++sub) {
      AscendC::FixpipeParamsArch3510<AscendC::CO2Layout::ROW_MAJOR> params;
      params.nSize = columns;
      params.mSize = heads_.of(sub);
      params.srcStride = align_to(heads_.count, kFractalRows);
      params.dstStride = columns;
      params.subBlockId = sub;
      const uint32_t skipped = sub == 0 ? 0 : heads_.first_half();
      AscendC::Fixpipe<float, float, kRowsToUb>(to, from[skipped * 16], params);
    }
    AscendC::SetFlag<AscendC::HardEvent::FIX_M>(event);
  }
};

}  // namespace tandem

// Chunks that other tasks left in memory, merged: a vector core takes some heads of a row.
#pragma once

#include "_attention_vector.h"

namespace tandem {

// Chunks that come to UB together, and heads of a part.
struct MergeTile {
  uint32_t heads, chunks;

  TANDEM_SHARED static constexpr uint32_t numbers_of(uint32_t heads) {
    return 4 * rows::whole_steps(heads);
  }
  static constexpr uint32_t bytes(uint32_t heads, uint32_t dim) {
    return 4 * heads * dim + 2 * numbers_of(heads);
  }
};

template <class Ends>
class ChunkMerger {
 public:
  using Sums = HeadSums<Ends>;

  // UB: the sums, then of each of some chunks peaks and sums, then their outputs and a register's
  // bytes that the last is read with.
  static constexpr uint32_t room(const MergeTile &tile, uint32_t dim) {
    return Sums::room(tile.heads, dim) + tile.chunks * MergeTile::bytes(tile.heads, dim) +
           4 * rows::kStep;
  }

  __aicore__ inline ChunkMerger(const Partial &partial, const MergeTile &tile, const Ends &ends)
      : partial_(partial), tile_(tile), sums_(partial.dim, tile.heads, ends) {}

  // The parts of this block, neighbours.
  __aicore__ inline void run(Gm<float> sink) {
    rows::keep_infinity_and_nan();
    sums_.begin();
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1);
    const uint32_t parts = (partial_.heads + tile_.heads - 1) / tile_.heads;
    const rows::Share share = rows::share_of(int64_t(partial_.rows) * parts);
    for (uint32_t i = uint32_t(share.first); i < share.end; ++i) {
      const uint32_t first = i % parts * tile_.heads, left = partial_.heads - first;
      const Part part{i / parts, first, left < tile_.heads ? left : tile_.heads};
      sums_.start(part, sink);
      for (uint32_t chunk = 0; chunk < partial_.chunks; chunk += tile_.chunks) {
        const uint32_t more = partial_.chunks - chunk;
        merge(part, chunk, more < tile_.chunks ? more : tile_.chunks);
      }
      sums_.finish();
    }
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1);
    sums_.end();
    AscendC::PipeBarrier<PIPE_ALL>();
  }

 private:
  const Partial partial_;
  const MergeTile tile_;
  Sums sums_;

  __aicore__ inline AscendC::LocalTensor<float> numbers() const {
    const uint32_t bytes = 2 * tile_.chunks * MergeTile::numbers_of(tile_.heads);
    return AscendC::LocalTensor<float>(AscendC::TPosition::VECCALC,
                                       Sums::room(tile_.heads, partial_.dim), bytes / 4);
  }
  __aicore__ inline AscendC::LocalTensor<float> outputs() const {
    const uint32_t before = 2 * tile_.chunks * MergeTile::numbers_of(tile_.heads);
    return AscendC::LocalTensor<float>(AscendC::TPosition::VECCALC,
                                       Sums::room(tile_.heads, partial_.dim) + before,
                                       tile_.chunks * tile_.heads * partial_.dim + rows::kStep);
  }

  __aicore__ inline void merge(const Part &part, uint32_t chunk, uint32_t count) {
    const uint32_t lanes = MergeTile::numbers_of(tile_.heads) / 4, dim = partial_.dim;
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1);
    load(numbers(), partial_.numbers(part.row, chunk) + part.first, 2 * count, part.count,
         partial_.heads, lanes);
    load(outputs(), partial_.outputs(part.row, chunk) + int64_t(part.first) * dim, count,
         part.count * dim, partial_.heads * dim, part.count * dim);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID1);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID1);
    const Ub<float> number(numbers().GetPhyAddr()), output(outputs().GetPhyAddr());
    for (uint32_t i = 0; i < count; ++i) {
      sums_.merge_numbers(number + 2 * i * lanes, number + (2 * i + 1) * lanes);
      sums_.merge_output(output + i * part.count * dim);
    }
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID1);
  }

  // So many lines of some numbers, `stride` apart in memory and `to_stride` in UB.
  __aicore__ static inline void load(const AscendC::LocalTensor<float> &to, Gm<float> from,
                                     uint32_t lines, uint32_t count, uint32_t stride,
                                     uint32_t to_stride) {
    AscendC::GlobalTensor<float> source;
    source.SetGlobalBuffer(from);
    AscendC::DataCopyExtParams all;
    all.blockCount = uint16_t(lines);
    all.blockLen = 4 * count;
    all.srcStride = 4 * (stride - count);
    all.dstStride = (4 * to_stride - align_to(4 * count, kBlockBytes)) / kBlockBytes;
    all.rsv = 0;
    AscendC::DataCopyPad(to, source, all, AscendC::DataCopyPadExtParams<float>{false, 0, 0, 0});
  }
};

}  // namespace tandem

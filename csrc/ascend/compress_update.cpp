// compress_update: a task is a piece of a row and pools the group that the row completes.
//
// State is read before it is written without a launch between: of a chunk only the first ratio - 1
// rows reach back to what was before it, so the task of the first row does all of these, and then
// the writes of the whole chunk. Its copies to UB are in order before its copies from there.
#include "compress_update.h"

#include "_move.h"
#include "_rows.h"

using namespace AscendC;

namespace {

// Terms of `count` columns lie `stride` apart, all gates and then all values, in the order of their
// positions.
__simd_vf__ inline void pool_columns(Ub<float> terms, Ub<bfloat16_t> out, uint32_t ratio,
                                     uint32_t stride, uint32_t count) {
  const uint16_t steps = rows::rounds(count);
  for (uint16_t i = 0; i < steps; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(count);
    Reg::RegTensor<float> peak, gate, value, total, pooled;
    const Ub<float> gates = terms + i * rows::kStep, values = gates + ratio * stride;
    Reg::LoadAlign(peak, gates);
    for (uint32_t j = 1; j < ratio; ++j) {
      Reg::LoadAlign(gate, gates + j * stride);
      Reg::Max(peak, peak, gate, mask);
    }
    Reg::Duplicate(total, 0.0f);
    Reg::Duplicate(pooled, 0.0f);
    for (uint32_t j = 0; j < ratio; ++j) {
      Reg::LoadAlign(gate, gates + j * stride);
      Reg::LoadAlign(value, values + j * stride);
      Reg::Sub(gate, gate, peak, mask);
      Reg::Exp(gate, gate, mask);
      Reg::Add(total, total, gate, mask);
      Reg::Mul(value, gate, value, mask);
      Reg::Add(pooled, pooled, value, mask);
    }
    Reg::Div(pooled, pooled, total, mask);
    rows::store(out + i * rows::kStep, pooled, mask);
  }
}

struct Arrays {
  Gm<float> value, gate, state;
  Gm<int32_t> positions, slot, chunk_start, chunk_end;
  Gm<bfloat16_t> latent;
};

class Compress {
 public:
  __aicore__ inline Compress(const Arrays &arrays, const Pieces &pieces, int32_t ring,
                             int32_t ratio)
      : pieces_(pieces), width_(pieces.bytes / 4), ring_(ring), ratio_(ratio) {
    value_.SetGlobalBuffer(arrays.value);
    gate_.SetGlobalBuffer(arrays.gate);
    state_.SetGlobalBuffer(arrays.state);
    latent_.SetGlobalBuffer(arrays.latent);
    task_ = pieces.begin(GetBlockIdx(), GetBlockNum());
    end_ = pieces.begin(GetBlockIdx() + 1, GetBlockNum());
    const int64_t rows = pieces.row(end_ - 1) + 1;
    positions_.init(pipe_, arrays.positions, rows);
    slots_.init(pipe_, arrays.slot, rows);
    starts_.init(pipe_, arrays.chunk_start, rows);
    ends_.init(pipe_, arrays.chunk_end, rows);
    pipe_.InitBuffer(terms_, 2, pieces.piece * 2 * ratio);
    pipe_.InitBuffer(pooled_, 2, pieces.piece / 2);
    mover_.init(pipe_, uint32_t(pieces.piece));
  }

  __aicore__ inline void run() {
    for (; task_ < end_; ++task_) {
      const int64_t row = pieces_.row(task_);
      const int64_t slot = slots_.at(row), start = starts_.at(row), position = positions_.at(row);
      if (slot < 0) continue;
      if (row == start)
        open_chunk(row, ends_.at(row), slot, position);
      else if (row >= start + ratio_ - 1)
        pool(row, start, slot, position);
    }
  }

 private:
  const Pieces pieces_;
  const int64_t width_;
  const int32_t ring_, ratio_;
  GlobalTensor<float> value_, gate_, state_;
  GlobalTensor<bfloat16_t> latent_;
  TPipe pipe_;
  Numbers positions_, slots_, starts_, ends_;
  TQue<TPosition::VECIN, 1> terms_;
  TQue<TPosition::VECOUT, 1> pooled_;
  Mover mover_;
  int64_t task_, end_;

  __aicore__ inline int64_t column() const { return pieces_.first(task_) / 4; }
  __aicore__ inline uint32_t count() const { return pieces_.size(task_) / 4; }

  // Where the gate of a position stands in the state; the value follows a row further on.
  __aicore__ inline int64_t held(int64_t slot, int64_t position) const {
    return (slot * ring_ + position % ring_) * 2 * width_ + column();
  }

  // The rows that reach back before the chunk, then what is kept of it.
  __aicore__ inline void open_chunk(int64_t first, int64_t end, int64_t slot, int64_t position) {
    for (int64_t row = first; row < end && row < first + ratio_ - 1; ++row)
      pool(row, first, slot, position + row - first);
    for (int64_t row = end - first > ring_ ? end - ring_ : first; row < end; ++row) {
      const int64_t from = row * width_ + column(), to = held(slot, position + row - first);
      keep(to, gate_[from]);
      keep(to + width_, value_[from]);
    }
  }

  __aicore__ inline void keep(int64_t to, const GlobalTensor<float> &from) {
    GlobalTensor<uint8_t> source, target;
    source.SetGlobalBuffer(Gm<uint8_t>(from.GetPhyAddr()));
    target.SetGlobalBuffer(Gm<uint8_t>(state_.GetPhyAddr(uint64_t(to))));
    mover_.move(target, source, pieces_.size(task_));
  }

  // The group that ends at a row, if one does.
  __aicore__ inline void pool(int64_t row, int64_t start, int64_t slot, int64_t position) {
    if ((position + 1) % ratio_ != 0) return;
    const uint32_t stride = uint32_t(pieces_.piece / 4);
    LocalTensor<float> terms = terms_.AllocTensor<float>();
    for (int32_t i = 0; i < ratio_; ++i) {
      const int64_t back = ratio_ - 1 - i, from = (row - back) * width_ + column();
      const LocalTensor<float> gate = terms[i * stride], value = terms[(ratio_ + i) * stride];
      if (row - back >= start) {
        rows::load_row(gate, gate_, from, count());
        rows::load_row(value, value_, from, count());
      } else {
        const int64_t stored = held(slot, position - back);
        rows::load_row(gate, state_, stored, count());
        rows::load_row(value, state_, stored + width_, count());
      }
    }
    terms_.EnQue(terms);
    terms = terms_.DeQue<float>();
    LocalTensor<bfloat16_t> pooled = pooled_.AllocTensor<bfloat16_t>();
    asc_vf_call<pool_columns>(terms.GetPhyAddr(), pooled.GetPhyAddr(), uint32_t(ratio_), stride,
                              count());
    terms_.FreeTensor(terms);
    pooled_.EnQue(pooled);
    pooled = pooled_.DeQue<bfloat16_t>();
    rows::store_row(latent_, row * width_ + column(), pooled, count());
    pooled_.FreeTensor(pooled);
  }
};

__global__ __vector__ void compress_kernel(Gm<float> value, Gm<float> gate, Gm<float> state,
                                           Gm<int32_t> positions, Gm<int32_t> slot,
                                           Gm<int32_t> chunk_start, Gm<int32_t> chunk_end,
                                           Gm<bfloat16_t> latent, Pieces pieces, int32_t ring,
                                           int32_t ratio) {
  rows::keep_infinity_and_nan();
  Compress({value, gate, state, positions, slot, chunk_start, chunk_end, latent}, pieces, ring,
           ratio)
      .run();
}

}  // namespace

int32_t tandem_ascend_compress_update(const tandem_ascend_device *device, void *stream,
                                      const float *value, const float *gate, float *state,
                                      const int32_t *positions, const int32_t *slot,
                                      const int32_t *chunk_start, const int32_t *chunk_end,
                                      uint16_t *latent, int64_t rows, int32_t width, int32_t ring,
                                      int32_t ratio, int64_t piece) {
  const Pieces pieces{rows, 4 * int64_t(width), piece};
  if (ring <= 0 || ratio < 2 || piece % (4 * rows::kStep) != 0) return TANDEM_BAD_VALUE;
  const int64_t room = 4 * int64_t(ratio) + 1 + Mover::kUnderWay;
  if (int32_t status = check_pieces(device, pieces, room, 4 * kWindowBytes + rows::kSystemUb))
    return status;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(compress_kernel, piece_blocks(device, pieces), stream, gm_cast<float>(value),
                       gm_cast<float>(gate), gm_cast<float>(state), gm_cast<int32_t>(positions),
                       gm_cast<int32_t>(slot), gm_cast<int32_t>(chunk_start),
                       gm_cast<int32_t>(chunk_end), gm_cast<bfloat16_t>(latent), pieces, ring,
                       ratio);
}

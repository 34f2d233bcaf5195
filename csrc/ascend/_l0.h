// bf16 matrices in L1, as fractals, multiplied step by step through two buffers each of L0A and
// L0B.
#pragma once

#include "_product.h"

namespace tandem {

class L0Steps {
 public:
  __aicore__ explicit inline L0Steps(uint32_t l0_bytes) : half_bytes_(l0_bytes / 2) {}

  __aicore__ inline void begin() const {
    AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(EVENT_ID0);
    AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(EVENT_ID1);
  }
  __aicore__ inline void end() const {
    AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(EVENT_ID1);
  }

  // Elements of each of `lines` lines that a buffer holds, in whole blocks.
  __aicore__ inline uint32_t step(uint32_t lines) const {
    return half_bytes_ / 2 / lines / 16 * 16;
  }

  __aicore__ inline void next() { AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(steps_ % 2); }
  // Columns [start, start + count) of a matrix with so many rows, to the left or the right operand;
  // transposed: the right operand's depth is the rows.
  __aicore__ inline void load_left(const AscendC::LocalTensor<bfloat16_t> &from, uint32_t rows,
                                   uint32_t start, uint32_t count) const {
    load(tensor(AscendC::TPosition::A2), from, rows, start, count, false);
  }
  __aicore__ inline void load_right(const AscendC::LocalTensor<bfloat16_t> &from, uint32_t rows,
                                    uint32_t start, uint32_t count, bool transposed) const {
    load(tensor(AscendC::TPosition::B2), from, rows, start, count, transposed);
  }
  __aicore__ inline void multiply(const AscendC::LocalTensor<float> &to, uint32_t rows,
                                  uint32_t columns, uint32_t depth, bool first) {
    const uint32_t half = steps_++ % 2;
    AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(half);
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(half);
    AscendC::MmadParams params;
    params.m = rows;
    params.n = columns;
    params.k = depth;
    params.cmatrixInitVal = first;
    params.disableGemv = true;
    AscendC::Mmad(to, tensor(AscendC::TPosition::A2, half), tensor(AscendC::TPosition::B2, half),
                  params);
    if ((rows / 16) * (columns / 16) < 10) AscendC::PipeBarrier<PIPE_M>();
    AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(half);
  }

 private:
  const uint32_t half_bytes_;
  uint32_t steps_ = 0;

  __aicore__ inline AscendC::LocalTensor<bfloat16_t> tensor(AscendC::TPosition position,
                                                            uint32_t half) const {
    return AscendC::LocalTensor<bfloat16_t>(position, half * half_bytes_, half_bytes_ / 2);
  }
  __aicore__ inline AscendC::LocalTensor<bfloat16_t> tensor(AscendC::TPosition position) const {
    return tensor(position, steps_ % 2);
  }

  __aicore__ static inline void load(const AscendC::LocalTensor<bfloat16_t> &to,
                                     const AscendC::LocalTensor<bfloat16_t> &from, uint32_t rows,
                                     uint32_t start, uint32_t count, bool transposed) {
    const uint32_t fractals = align_to(rows, kFractalRows) / kFractalRows;
    AscendC::LoadData2DParamsV2 params;
    params.mStartPosition = 0;
    params.kStartPosition = start / 16;
    params.mStep = fractals;
    params.kStep = count / 16;
    params.srcStride = fractals;
    params.dstStride = transposed ? count / 16 : fractals;
    params.ifTranspose = transposed;
    params.sid = 0;
    AscendC::LoadData(to, from, params);
  }
};

}  // namespace tandem

// The cube core's side of index scores: products of the queries of a few rows with chunks of keys,
// mxfp4 both, each half of the keys to the UB of the vector core that has brought them.
//
// How exact a product is: one of two e2m1 is a multiple of 1/4 and at most 36, so that the 32 of a
// scale group sum to 13 bits. Scales are powers of two, so a product of up to four groups is exact
// in f32, in any order, while the exponents of its groups lie within 9 of each other.
#pragma once

#include "_index_plan.h"

namespace tandem {

constexpr AscendC::FixpipeConfig kScoresToUb = {AscendC::CO2Layout::ROW_MAJOR, true};

class IndexCube {
 public:
  __aicore__ explicit inline IndexCube(const IndexShape &shape)
      : lines_(shape.lines()),
        l0_half_(shape.l0_bytes / 2),
        l0c_half_(shape.l0c_bytes / 2),
        most_(shape.most_lines()),
        scores_bytes_(4 * most_ * kHalfKeys) {}

  __aicore__ inline void begin() const {
    AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kQueriesFlag);
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(i);
      AscendC::SetFlag<AscendC::HardEvent::FIX_M>(i);
    }
  }
  __aicore__ inline void end() const {
    AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kQueriesFlag);
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(i);
      AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(i);
      if (chunks_ > uint32_t(i)) AscendC::CrossCoreWaitFlag<2, PIPE_FIX>(kScoresFree + i);
    }
  }

  // So many queries and a group's keys, as the vector cores bring them.
  __aicore__ inline void run(uint32_t queries, const RowGroup &group) {
    const uint32_t chunks = chunks_of_keys(group.seen);
    if (chunks == 0) return;
    AscendC::CrossCoreWaitFlag<2, PIPE_MTE1>(kQueriesReady);
    AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(kQueriesFlag);
    load(left(), L1Plan{lines_}.queries(), queries);
    AscendC::CrossCoreSetFlag<2, PIPE_MTE1>(kQueriesFree);
    for (uint32_t chunk = 0; chunk < chunks; ++chunk)
      multiply(queries, 2 * half_lines(chunk_keys(group.span(), chunk)));
    AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(kQueriesFlag);
  }

 private:
  using Code = fp4x2_e2m1_t;
  static constexpr int32_t kQueriesFlag = 2;
  const LineShape lines_;
  const uint32_t l0_half_, l0c_half_, most_, scores_bytes_;
  uint32_t chunks_ = 0;

  __aicore__ inline AscendC::LocalTensor<Code> left() const {
    return AscendC::LocalTensor<Code>(AscendC::TPosition::A2, 0, 2 * l0_half_);
  }
  __aicore__ inline AscendC::LocalTensor<Code> right(uint32_t which) const {
    return AscendC::LocalTensor<Code>(AscendC::TPosition::B2, which * l0_half_, l0_half_);
  }
  __aicore__ inline AscendC::LocalTensor<float> products(uint32_t which) const {
    return AscendC::LocalTensor<float>(AscendC::TPosition::CO1, which * l0c_half_, l0c_half_ / 4);
  }

  // An operand, with its scales, from L1 to L0A or L0B.
  __aicore__ inline void load(const AscendC::LocalTensor<Code> &to, uint32_t base,
                              uint32_t count) const {
    const uint32_t columns = lines_.columns(), lines = 2 * half_lines(count);
    const AscendC::LocalTensor<Code> codes(AscendC::TPosition::A1, base, lines_.codes_room(lines));
    const AscendC::LocalTensor<fp8_e8m0_t> scales(
        AscendC::TPosition::A1, base + lines_.codes_room(lines), lines_.scales_room(lines));
    const uint32_t fractals = align_to(count, kFractalRows) / kFractalRows;
    AscendC::LoadData2DParamsV2 of_codes;
    of_codes.mStartPosition = 0;
    of_codes.kStartPosition = 0;
    of_codes.mStep = fractals;
    of_codes.kStep = columns;
    of_codes.srcStride = lines / kFractalRows;
    of_codes.dstStride = fractals;
    of_codes.ifTranspose = false;
    of_codes.sid = 0;
    AscendC::LoadData2DMxParams of_scales;
    of_scales.xStartPosition = 0;
    of_scales.yStartPosition = 0;
    of_scales.xStep = fractals;
    of_scales.yStep = columns;
    of_scales.srcStride = columns;
    of_scales.dstStride = columns;
    AscendC::LoadData(to, codes, scales, of_codes, of_scales);
  }

  // Whole pairs of fractals of keys: those that fill a chunk up are zeros.
  __aicore__ inline void multiply(uint32_t queries, uint32_t keys) {
    const uint32_t which = chunks_ % 2;
    AscendC::CrossCoreWaitFlag<2, PIPE_MTE1>(kKeysReady + which);
    AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(which);
    load(right(which), L1Plan{lines_}.keys(which), keys);
    AscendC::CrossCoreSetFlag<2, PIPE_MTE1>(kKeysFree + which);
    AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(which);
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(which);
    AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(which);
    AscendC::MmadParams params;
    params.m = queries;
    params.n = keys;
    params.k = lines_.columns() * kPairOf;
    params.cmatrixInitVal = true;
    params.disableGemv = true;
    AscendC::MmadMx(products(which), left(), right(which), params);
    AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(which);
    AscendC::SetFlag<AscendC::HardEvent::M_FIX>(which);
    AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(which);
    if (chunks_++ >= 2) AscendC::CrossCoreWaitFlag<2, PIPE_FIX>(kScoresFree + which);
    AscendC::FixpipeParamsArch3510<AscendC::CO2Layout::ROW_MAJOR> halves;
    halves.nSize = keys;
    halves.mSize = queries;
    halves.srcStride = align_to(queries, kFractalRows);
    halves.dstStride = kHalfKeys;
    halves.dualDstCtl = 2;
    const AscendC::LocalTensor<float> to(AscendC::TPosition::VECCALC, which * scores_bytes_,
                                         scores_bytes_ / 4);
    AscendC::Fixpipe<float, float, kScoresToUb>(to, products(which), halves);
    AscendC::CrossCoreSetFlag<2, PIPE_FIX>(kScoresReady + which);
    AscendC::SetFlag<AscendC::HardEvent::FIX_M>(which);
  }
};

}  // namespace tandem

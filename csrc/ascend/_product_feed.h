// The vector cores' side of a product with fp4 weights: codes from global memory, widened to fp8,
// to L1 of the block's cube core.
//
// Weights lie group by group of K: codes [groups, outputs of the whole weight, 16 bytes]. Widened
// where they lie they are the fractals of L1. Each vector core takes half of a chunk's groups. The
// e4m3 code of an e2m1 magnitude m is m << 2, which stands for 2^-6 of its value; the scales of the
// weight make up for it. Eleven vector instructions widen 512 codes; a 950PR streams codes at about
// that rate, so with few rows memory and vector cores are loaded alike.
#pragma once

#include "_product.h"

namespace tandem {

constexpr uint32_t kGroupBytes = 16;  // codes of 32 elements
constexpr uint32_t kRegisterBytes = 256;

// Two codes a byte, the first in the low half, to a byte each. Bytes go through whole registers.
__simd_vf__ inline void widen_codes(Ub<uint8_t> from, Ub<uint8_t> to, uint32_t bytes) {
  namespace Reg = AscendC::Reg;
  Reg::MaskReg all = Reg::CreateMask<uint8_t, Reg::MaskPattern::ALL>();
  Reg::RegTensor<uint8_t> low_magnitude, low_sign, high_magnitude, high_sign;
  Reg::Duplicate(low_magnitude, uint8_t(0x07), all);
  Reg::Duplicate(low_sign, uint8_t(0x08), all);
  Reg::Duplicate(high_magnitude, uint8_t(0x70), all);
  Reg::Duplicate(high_sign, uint8_t(0x80), all);
  uint32_t left = bytes;
  const uint16_t rounds = (bytes + kRegisterBytes - 1) / kRegisterBytes;
  for (uint16_t i = 0; i < rounds; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<uint8_t>(left);
    Reg::RegTensor<uint8_t> codes, first, second, sign;
    Reg::LoadAlign(codes, from + i * kRegisterBytes);
    Reg::And(first, codes, low_magnitude, mask);
    Reg::ShiftLefts(first, first, int16_t(2), mask);
    Reg::And(sign, codes, low_sign, mask);
    Reg::ShiftLefts(sign, sign, int16_t(4), mask);
    Reg::Or(first, first, sign, mask);
    Reg::And(second, codes, high_magnitude, mask);
    Reg::ShiftRights(second, second, int16_t(2), mask);
    Reg::And(sign, codes, high_sign, mask);
    Reg::Or(second, second, sign, mask);
    Reg::StoreAlign<uint8_t, Reg::StoreDist::DIST_INTLV_B8>(to + i * 2 * kRegisterBytes, first,
                                                            second, mask);
  }
}

class WeightFeed {
 public:
  __aicore__ inline WeightFeed(const Tile &tile, uint32_t l1_bytes)
      : tile_(tile), l1_half_(l1_bytes / 2) {}

  __aicore__ inline void begin() {
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(i);
      AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(i);
    }
  }
  // The cube core has given both buffers back, and nothing is on its way any more.
  __aicore__ inline void end() {
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(i);
      AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(i);
      if (chunks_ > uint32_t(i)) AscendC::CrossCoreWaitFlag<2, PIPE_MTE3>(kWeightsFree + i);
    }
  }

  // All of K of one tile's weights. `codes`: of its first output in the first group; `stride`:
  // outputs of the whole weight.
  __aicore__ inline void run(Gm<uint8_t> codes, uint64_t stride, uint32_t outputs, uint32_t depth) {
    const uint32_t groups = align_to(depth, kPairOf) / kScalesOf, most = tile_.chunk / kScalesOf;
    for (uint32_t group = 0; group < groups; group += most) {
      const uint32_t half = (groups - group < most ? groups - group : most) / 2;
      const uint32_t skipped = uint32_t(AscendC::GetSubBlockIdx()) * half;
      feed(codes + (group + skipped) * stride * kGroupBytes, stride, outputs, half, skipped);
    }
  }

 private:
  const Tile tile_;
  const uint32_t l1_half_;
  uint32_t chunks_ = 0;

  // Half of a chunk of codes in UB, as they come and widened, in whole registers.
  __aicore__ inline uint32_t in_bytes() const {
    return align_to(tile_.chunk / kScalesOf / 2 * tile_.outputs * kGroupBytes, kRegisterBytes);
  }

  __aicore__ inline void feed(Gm<uint8_t> codes, uint64_t stride, uint32_t outputs, uint32_t groups,
                              uint32_t skipped) {
    const uint32_t buffer = chunks_ % 2, even = align_to(outputs, 2);
    const AscendC::LocalTensor<uint8_t> in(AscendC::TPosition::VECIN, buffer * in_bytes(),
                                           in_bytes());
    const AscendC::LocalTensor<uint8_t> out(AscendC::TPosition::VECOUT,
                                            (2 + 2 * buffer) * in_bytes(), 2 * in_bytes());
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(buffer);
    AscendC::GlobalTensor<uint8_t> source;
    source.SetGlobalBuffer(codes);
    AscendC::DataCopyExtParams blocks;
    blocks.blockCount = groups;
    blocks.blockLen = outputs * kGroupBytes;
    blocks.srcStride = (stride - outputs) * kGroupBytes;
    blocks.dstStride = 0;
    blocks.rsv = 0;
    const AscendC::DataCopyPadExtParams<uint8_t> zeros{true, 0,
                                                       uint8_t((even - outputs) * kGroupBytes), 0};
    AscendC::DataCopyPad(in, source, blocks, zeros);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(buffer);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(buffer);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(buffer);
    asc_vf_call<widen_codes>(in.GetPhyAddr(), out.GetPhyAddr(), groups * even * kGroupBytes);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(buffer);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(buffer);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(buffer);
    if (chunks_ >= 2) AscendC::CrossCoreWaitFlag<2, PIPE_MTE3>(kWeightsFree + buffer);
    const uint32_t rows = align_to(outputs, kFractalRows), bytes = skipped * rows * kBlockBytes;
    const uint32_t base = buffer * l1_half_ + tile_.rows * tile_.chunk;
    const AscendC::LocalTensor<uint8_t> l1(AscendC::TPosition::B1, base + bytes,
                                           tile_.outputs * tile_.chunk - bytes);
    AscendC::DataCopyParams fractals;
    fractals.blockCount = groups;
    fractals.blockLen = outputs;
    fractals.srcGap = even - outputs;
    fractals.dstGap = rows - outputs;
    AscendC::DataCopy(l1, out, fractals);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(buffer);
    AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(kWeightsReady + buffer);
    ++chunks_;
  }
};

}  // namespace tandem

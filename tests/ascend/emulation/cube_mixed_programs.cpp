// Programs of a cube core with its two vector cores: through UB to L1, and from L0C to both UBs.
#include "kernel.h"

using namespace AscendC;

namespace {

enum Plant : int32_t {
  kRight = 0,
  kNoReady,    // the cube core loads what the vector cores may still be copying to L1
  kNoDone,     // the vector cores store what Fixpipe may still be moving to UB
  kNoFree,     // a vector core overwrites L1 before LoadData has read it
  kFarEnough,  // the flag is waited for on another pipe than the one that goes on
  kOneOfTwo,   // only one vector core sets a flag that needs both
};

constexpr FixpipeConfig kToUb = {CO2Layout::ROW_MAJOR, true};
constexpr uint32_t kSide = 32;  // all matrices are 32 x 32, bf16 to f32
constexpr uint32_t kNumbers = kSide * kSide;
constexpr uint16_t kCopied = 0, kMultiplied = 1, kLoaded = 2;

__aicore__ inline LocalTensor<float> results(uint32_t round) {
  return LocalTensor<float>(TPosition::VECOUT, (64 << 10) + round * (kNumbers * 2), kNumbers / 2);
}

__aicore__ inline void vector_side(Gm<bfloat16_t> a, Gm<bfloat16_t> b, Gm<float> c, uint32_t rounds,
                                   int32_t plant) {
  const uint32_t half = GetSubBlockIdx();
  LocalTensor<bfloat16_t> ub(TPosition::VECIN, 0, kNumbers);
  LocalTensor<bfloat16_t> l1(half == 0 ? TPosition::A1 : TPosition::B1, half * (8 << 10), kNumbers);
  for (uint32_t round = 0; round < rounds; ++round) {
    GlobalTensor<bfloat16_t> from;
    from.SetGlobalBuffer((half == 0 ? a : b) + int64_t(round) * kNumbers);
    DataCopy(ub, from, kNumbers);
    SetFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
    if (round > 0 && plant != kNoFree) CrossCoreWaitFlag<2, PIPE_MTE3>(kLoaded);
    if (round > 0 && plant == kNoFree) PipeBarrier<PIPE_MTE3>();
    DataCopyParams blocks;
    blocks.blockLen = kNumbers * 2 / 32;
    DataCopy(l1, ub, blocks);
    if (plant != kNoReady && (half == 0 || plant != kOneOfTwo))
      CrossCoreSetFlag<2, PIPE_MTE3>(kCopied);
    SetFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
    WaitFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
  }
  if (plant != kNoFree) CrossCoreWaitFlag<2, PIPE_MTE3>(kLoaded);
  for (uint32_t round = 0; round < rounds; ++round) {
    if (plant != kNoDone) CrossCoreWaitFlag<2, PIPE_MTE3>(kMultiplied);
    GlobalTensor<float> to;
    to.SetGlobalBuffer(c + int64_t(round) * kNumbers + half * (kNumbers / 2));
    DataCopy(to, results(round), kNumbers / 2);
  }
}

__aicore__ inline void cube_side(uint32_t rounds, int32_t plant) {
  LocalTensor<bfloat16_t> a1(TPosition::A1, 0, kNumbers), b1(TPosition::B1, 8 << 10, kNumbers);
  LocalTensor<bfloat16_t> a2(TPosition::A2, 0, kNumbers), b2(TPosition::B2, 0, kNumbers);
  LocalTensor<float> c1(TPosition::CO1, 0, kNumbers),
      result(TPosition::VECOUT, 64 << 10, kNumbers / 2);
  for (uint32_t round = 0; round < rounds; ++round) {
    if (plant == kFarEnough) CrossCoreWaitFlag<2, PIPE_M>(kCopied);
    if (plant != kNoReady && plant != kFarEnough) CrossCoreWaitFlag<2, PIPE_MTE1>(kCopied);
    LoadData2DParamsV2 load;
    load.mStep = 2;
    load.kStep = 2;
    load.srcStride = 2;
    load.dstStride = 2;
    LoadData(a2, a1, load);
    LoadData(b2, b1, load);
    if (plant != kNoFree) CrossCoreSetFlag<2, PIPE_MTE1>(kLoaded);
    SetFlag<HardEvent::MTE1_M>(EVENT_ID0);
    WaitFlag<HardEvent::MTE1_M>(EVENT_ID0);
    MmadParams p;
    p.m = kSide;
    p.n = kSide;
    p.k = kSide;
    Mmad(c1, a2, b2, p);
    SetFlag<HardEvent::M_FIX>(EVENT_ID0);
    WaitFlag<HardEvent::M_FIX>(EVENT_ID0);
    FixpipeParamsArch3510<CO2Layout::ROW_MAJOR> out;
    out.nSize = kSide;
    out.mSize = kSide;
    out.srcStride = kSide;
    out.dstStride = kSide;
    out.dualDstCtl = 1;
    Fixpipe<float, float, kToUb>(results(round), c1, out);
    if (plant != kNoDone) CrossCoreSetFlag<2, PIPE_FIX>(kMultiplied);
    PipeBarrier<PIPE_ALL>();
  }
}

__global__ __mix__(1, 2) void mixed(Gm<bfloat16_t> a, Gm<bfloat16_t> b, Gm<float> c,
                                    uint32_t rounds, int32_t plant) {
  InitSocState();
  if ASCEND_IS_AIV {
    vector_side(a, b, c, rounds, plant);
  }
  if ASCEND_IS_AIC {
    cube_side(rounds, plant);
  }
  PipeBarrier<PIPE_ALL>();
}

}  // namespace

TANDEM_API int32_t cube_mixed(const void *a, const void *b, void *c, int32_t rounds,
                              int32_t plant) {
  return TANDEM_LAUNCH(mixed, 1, nullptr, gm_cast<bfloat16_t>(a), gm_cast<bfloat16_t>(b),
                       gm_cast<float>(c), rounds, plant);
}

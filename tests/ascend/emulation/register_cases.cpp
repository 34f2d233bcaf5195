// Register-level functions for test_registers.py: each reads `in` and writes `out`, by the name at
// the end.
#include <cstring>

#include "kernel.h"

namespace {

using namespace AscendC;
using Bytes = Ub<uint8_t>;
using Function = void (*)(Bytes in, Bytes out);
using Reg::LoadDist;
using Reg::MaskMergeMode;
using Reg::MaskPattern;
using Reg::MaskReg;
using Reg::MemType;
using Reg::RegLayout;
using Reg::RegTensor;
using Reg::SatMode;
using Reg::StoreDist;

__simd_vf__ inline void call(Function function, Bytes in, Bytes out) { function(in, out); }

__global__ __vector__ void run(Gm<uint8_t> in, int64_t in_bytes, Gm<uint8_t> out, int64_t out_bytes,
                               Function function, int32_t per_instruction) {
  TPipe pipe;
  TBuf<TPosition::VECCALC> first, second;
  pipe.InitBuffer(first, uint32_t(in_bytes));
  pipe.InitBuffer(second, uint32_t(out_bytes));
  const auto source = first.Get<uint8_t>();
  const auto result = second.Get<uint8_t>();
  GlobalTensor<uint8_t> from, to;
  from.SetGlobalBuffer(in);
  to.SetGlobalBuffer(out);
  if (per_instruction) SetCtrlSpr<60, 60>(0);
  DataCopy(source, from, uint32_t(in_bytes));
  PipeBarrier<PIPE_ALL>();
  asc_vf_call<call>(function, source.GetPhyAddr(), result.GetPhyAddr());
  PipeBarrier<PIPE_ALL>();
  DataCopy(to, result, uint32_t(out_bytes));
}

// Conversions -------------------------------------------------------------------------------------

constexpr Reg::CastTrait trait(RegLayout layout, SatMode saturation, RoundMode rounding) {
  return {layout, saturation, MaskMergeMode::ZEROING, rounding};
}

template <RegLayout layout>
constexpr Reg::CastTrait kExact = trait(layout, SatMode::UNKNOWN, RoundMode::UNKNOWN);
template <RoundMode mode>
constexpr Reg::CastTrait kNarrow = trait(RegLayout::ZERO, SatMode::NO_SAT, mode);
template <RoundMode mode>
constexpr Reg::CastTrait kSameWidth = trait(RegLayout::UNKNOWN, SatMode::SAT, mode);

// A whole register of the source, read as T, and of the result, as D.
template <typename D, typename S, const Reg::CastTrait &how>
void cast(Bytes in, Bytes out) {
  RegTensor<S> source;
  RegTensor<D> result;
  MaskReg all = Reg::CreateMask<S>();
  MaskReg bytes = Reg::CreateMask<D>();
  Reg::LoadAlign(source, Ub<S>(in));
  Reg::Cast<D, S, how>(result, source, all);
  Reg::StoreAlign(Ub<D>(out), result, bytes);
}

// bf16 to f32 and back, 64 at a time, by UNPACK and PACK.
void widen_and_narrow(Bytes in, Bytes out) {
  RegTensor<bfloat16_t> narrow, back;
  RegTensor<float> wide;
  MaskReg all = Reg::CreateMask<float>();
  Reg::LoadAlign<bfloat16_t, LoadDist::DIST_UNPACK_B16>(narrow, Ub<bfloat16_t>(in));
  Reg::Cast<float, bfloat16_t, kExact<RegLayout::ZERO>>(wide, narrow, all);
  Reg::Muls(wide, wide, 3.0f, all);
  Reg::Cast<bfloat16_t, float, kNarrow<RoundMode::CAST_RINT>>(back, wide, all);
  Reg::StoreAlign<bfloat16_t, StoreDist::DIST_PACK_B32>(Ub<bfloat16_t>(out), back, all);
}

// Arithmetic and reductions -----------------------------------------------------------------------

template <Reg::ReduceType type>
void reduce(Bytes in, Bytes out) {
  RegTensor<float> x, result;
  uint32_t count = 37;
  MaskReg some = Reg::UpdateMask<float>(count);
  MaskReg all = Reg::CreateMask<float>();
  Reg::LoadAlign(x, Ub<float>(in));
  Reg::Reduce<type>(result, x, some);
  Reg::StoreAlign(Ub<float>(out), result, all);
}

void reduce_blocks(Bytes in, Bytes out) {
  RegTensor<float> x, result;
  MaskReg all = Reg::CreateMask<float>();
  Reg::LoadAlign(x, Ub<float>(in));
  Reg::ReduceDataBlock<Reg::ReduceType::SUM>(result, x, all);
  Reg::StoreAlign(Ub<float>(out), result, all);
}

// a * b + c with one rounding; a, b and c are three registers.
void fused(Bytes in, Bytes out) {
  RegTensor<float> a, b, c;
  MaskReg all = Reg::CreateMask<float>();
  Reg::LoadAlign(a, Ub<float>(in));
  Reg::LoadAlign(b, Ub<float>(in) + 64);
  Reg::LoadAlign(c, Ub<float>(in) + 128);
  Reg::MulAddDst(c, a, b, all);
  Reg::StoreAlign(Ub<float>(out), c, all);
}

// Where x > y, x - y; else x shifted left by two as an integer would be (3 below).
void select(Bytes in, Bytes out) {
  RegTensor<int32_t> x, y, difference, shifted;
  MaskReg all = Reg::CreateMask<int32_t>(), greater;
  Reg::LoadAlign(x, Ub<int32_t>(in));
  Reg::LoadAlign(y, Ub<int32_t>(in) + 64);
  Reg::Compare<int32_t, CMPMODE::GT>(greater, x, y, all);
  Reg::Sub(difference, x, y, all);
  Reg::ShiftRights(shifted, x, int16_t(3), all);
  Reg::Select(difference, difference, shifted, greater);
  Reg::StoreAlign(Ub<int32_t>(out), difference, all);
}

// Distributions -----------------------------------------------------------------------------------

template <typename T, LoadDist dist>
void load_by(Bytes in, Bytes out) {
  RegTensor<T> x;
  MaskReg all = Reg::CreateMask<T>();
  Reg::LoadAlign<T, dist>(x, Ub<T>(in));
  Reg::StoreAlign(Ub<T>(out), x, all);
}

template <typename T, StoreDist dist, typename M>
void store_by(Bytes in, Bytes out) {
  RegTensor<T> x, zero;
  MaskReg all = Reg::CreateMask<T>(), selected = Reg::CreateMask<M>();
  Reg::Duplicate(zero, T(0));
  Reg::StoreAlign(Ub<T>(out), zero, all);
  Reg::LocalMemBar<MemType::VEC_STORE, MemType::VEC_STORE>();
  Reg::LoadAlign(x, Ub<T>(in));
  Reg::StoreAlign<T, dist>(Ub<T>(out), x, selected);
}

// Even and odd elements apart, exchanged, and together again.
void interleave(Bytes in, Bytes out) {
  RegTensor<uint16_t> even, odd, low, high;
  MaskReg all = Reg::CreateMask<uint16_t>();
  Reg::LoadAlign<uint16_t, LoadDist::DIST_DINTLV_B16>(even, odd, Ub<uint16_t>(in));
  Reg::Interleave(low, high, odd, even);
  Reg::StoreAlign(Ub<uint16_t>(out), low, all);
  Reg::StoreAlign(Ub<uint16_t>(out) + 128, high, all);
}

// 130 elements from element 3 on to element 5 on, by the helper registers.
void unaligned(Bytes in, Bytes out) {
  RegTensor<float> x;
  Reg::UnalignRegForLoad from;
  Reg::UnalignRegForStore to;
  Ub<float> source = Ub<float>(in) + 3, target = Ub<float>(out) + 5;
  MaskReg all = Reg::CreateMask<float>();
  RegTensor<float> zero;
  Reg::Duplicate(zero, 0.0f);
  for (uint16_t i = 0; i < 3; ++i) Reg::StoreAlign(Ub<float>(out) + 64 * i, zero, all);
  Reg::LocalMemBar<MemType::VEC_STORE, MemType::VEC_STORE>();
  Reg::LoadUnAlignPre(from, source);
  for (uint16_t i = 0; i < 2; ++i) {
    Reg::LoadUnAlign(x, from, source, 64);
    Reg::StoreUnAlign(target, x, to, 64);
  }
  Reg::LoadUnAlign(x, from, source);
  Reg::StoreUnAlign(target, x, to, 2);
  Reg::StoreUnAlignPost(target, to, 0);
}

struct Case {
  const char *name;
  Function function;
};

constexpr Case kCases[] = {
    {"bf16-f32-even", cast<float, bfloat16_t, kExact<RegLayout::ZERO>>},
    {"bf16-f32-odd", cast<float, bfloat16_t, kExact<RegLayout::ONE>>},
    {"f32-bf16-rint", cast<bfloat16_t, float, kNarrow<RoundMode::CAST_RINT>>},
    {"f32-bf16-floor", cast<bfloat16_t, float, kNarrow<RoundMode::CAST_FLOOR>>},
    {"f32-bf16-ceil", cast<bfloat16_t, float, kNarrow<RoundMode::CAST_CEIL>>},
    {"f32-bf16-round", cast<bfloat16_t, float, kNarrow<RoundMode::CAST_ROUND>>},
    {"f32-bf16-trunc", cast<bfloat16_t, float, kNarrow<RoundMode::CAST_TRUNC>>},
    {"f32-e4m3", cast<fp8_e4m3fn_t, float, kNarrow<RoundMode::CAST_RINT>>},
    {"f32-e5m2", cast<fp8_e5m2_t, float, kNarrow<RoundMode::CAST_RINT>>},
    {"e4m3-f32-0", cast<float, fp8_e4m3fn_t, kExact<RegLayout::ZERO>>},
    {"e4m3-f32-3", cast<float, fp8_e4m3fn_t, kExact<RegLayout::THREE>>},
    {"e5m2-f32-1", cast<float, fp8_e5m2_t, kExact<RegLayout::ONE>>},
    {"e8m0-bf16-1", cast<bfloat16_t, fp8_e8m0_t, kExact<RegLayout::ONE>>},
    {"e2m1-bf16-2", cast<bfloat16_t, fp4x2_e2m1_t, kExact<RegLayout::TWO>>},
    {"i8-i32-2", cast<int32_t, int8_t, kExact<RegLayout::TWO>>},
    {"i16-u32-0", cast<uint32_t, int16_t, kExact<RegLayout::ZERO>>},
    {"f32-i32-rint", cast<int32_t, float, kSameWidth<RoundMode::CAST_RINT>>},
    {"f32-i32-trunc", cast<int32_t, float, kSameWidth<RoundMode::CAST_TRUNC>>},
    {"widen-and-narrow", widen_and_narrow},
    {"reduce-sum", reduce<Reg::ReduceType::SUM>},
    {"reduce-max", reduce<Reg::ReduceType::MAX>},
    {"reduce-min", reduce<Reg::ReduceType::MIN>},
    {"reduce-blocks", reduce_blocks},
    {"fused", fused},
    {"select", select},
    {"load-brc-b32", load_by<float, LoadDist::DIST_BRC_B32>},
    {"load-us-b16", load_by<uint16_t, LoadDist::DIST_US_B16>},
    {"load-ds-b8", load_by<uint8_t, LoadDist::DIST_DS_B8>},
    {"load-unpack-b8", load_by<uint8_t, LoadDist::DIST_UNPACK_B8>},
    {"load-unpack4-b8", load_by<uint8_t, LoadDist::DIST_UNPACK4_B8>},
    {"load-blk", load_by<uint32_t, LoadDist::DIST_BLK>},
    {"load-e2b-b16", load_by<uint16_t, LoadDist::DIST_E2B_B16>},
    {"load-e2b-b32", load_by<uint32_t, LoadDist::DIST_E2B_B32>},
    {"store-pack-b16", store_by<uint8_t, StoreDist::DIST_PACK_B16, uint16_t>},
    {"store-pack4-b32", store_by<uint8_t, StoreDist::DIST_PACK4_B32, uint32_t>},
    {"store-first-b32", store_by<uint32_t, StoreDist::DIST_FIRST_ELEMENT_B32, uint32_t>},
    {"interleave", interleave},
    {"unaligned", unaligned},
};

}  // namespace

TANDEM_API int32_t register_case(const char *name, const uint8_t *in, int64_t in_bytes,
                                 uint8_t *out, int64_t out_bytes, int32_t per_instruction) {
  for (const Case &one : kCases)
    if (std::strcmp(name, one.name) == 0)
      return TANDEM_LAUNCH(run, 1, nullptr, gm_cast<uint8_t>(in), in_bytes, gm_cast<uint8_t>(out),
                           out_bytes, one.function, per_instruction);
  return -1;
}

// Faults of register-level functions; each is written with and without it.
#include <cmath>

#include "scenario.h"

namespace {

using namespace AscendC;
using Reg::MaskReg;
using Reg::MemType;
using Reg::RegTensor;
using Function = void (*)(Ub<float> data, Ub<float> fresh);

__simd_vf__ inline void call(Function function, Ub<float> data, Ub<float> fresh) {
  function(data, fresh);
}

// 512 floats that were written, and 128 that were not.
void run(Gm<float> in, Function function, bool waits = true, bool by_call = true) {
  TPipe pipe;
  TBuf<TPosition::VECCALC> first, second;
  pipe.InitBuffer(first, 2048);
  pipe.InitBuffer(second, 512);
  const auto data = first.Get<float>();
  GlobalTensor<float> from;
  from.SetGlobalBuffer(in);
  DataCopy(data, from, 512);
  if (waits) PipeBarrier<PIPE_ALL>();
  const Ub<float> written = data.GetPhyAddr(), fresh = second.Get<float>().GetPhyAddr();
  if (by_call)
    asc_vf_call<call>(function, written, fresh);
  else
    function(written, fresh);
}

template <bool good>
void load_after_store(Ub<float> data, Ub<float>) {
  RegTensor<float> x, y;
  MaskReg all = Reg::CreateMask<float>();
  Reg::LoadAlign(x, data);
  Reg::StoreAlign(data + 64, x, all);
  if (good) Reg::LocalMemBar<MemType::VEC_STORE, MemType::VEC_LOAD>();
  Reg::LoadAlign(y, data + 64);
}

template <bool good>
void load_after_store_of_register(Ub<float> data, Ub<float>) {
  RegTensor<float> x, y;
  MaskReg all = Reg::CreateMask<float>();
  Reg::LoadAlign(x, data);
  Reg::StoreAlign(data + 64, x, all);
  Reg::LoadAlign(good ? x : y, data + 64);
}

template <bool good>
void store_after_load(Ub<float> data, Ub<float>) {
  RegTensor<float> x, y;
  MaskReg all = Reg::CreateMask<float>();
  Reg::LoadAlign(x, data);
  Reg::LoadAlign(y, data + 64);
  Reg::Adds(y, y, 1.0f, all);
  if (good) Reg::Add(y, y, x, all);  // waits for the load of x
  Reg::StoreAlign(data, y, all);
}

template <bool good>
void store_after_store(Ub<float> data, Ub<float>) {
  RegTensor<float> x, y;
  MaskReg all = Reg::CreateMask<float>();
  Reg::LoadAlign(x, data);
  Reg::LoadAlign(y, data + 64);
  Reg::StoreAlign(data + 128, x, all);
  Reg::StoreAlign(data + 128, good ? x : y, all);
}

template <bool good>
void empty_register(Ub<float> data, Ub<float>) {
  RegTensor<float> x, y;
  MaskReg all = Reg::CreateMask<float>();
  Reg::LoadAlign(x, data);
  if (good) Reg::LoadAlign(y, data);
  Reg::Add(x, x, y, all);
}

template <bool good>
void empty_mask(Ub<float> data, Ub<float>) {
  RegTensor<float> x;
  MaskReg all;
  if (good) all = Reg::CreateMask<float>();
  Reg::LoadAlign(x, data);
  Reg::Add(x, x, x, all);
}

template <bool good>
void mask_of_other_width(Ub<float> data, Ub<float>) {
  RegTensor<int16_t> x;
  MaskReg all = good ? Reg::CreateMask<int16_t>() : Reg::CreateMask<float>();
  Reg::LoadAlign(x, Ub<int16_t>(data));
  Reg::Add(x, x, x, all);
}

template <bool good>
void lanes_of_unwritten_memory(Ub<float>, Ub<float> fresh) {
  RegTensor<float> x, y;
  MaskReg four = Reg::CreateMask<float, Reg::MaskPattern::VL4>(),
          eight = Reg::CreateMask<float, Reg::MaskPattern::VL8>();
  Reg::Duplicate(y, 1.0f);
  Reg::StoreAlign(fresh, y, four);
  Reg::LocalMemBar<MemType::VEC_STORE, MemType::VEC_LOAD>();
  Reg::LoadAlign(x, fresh);
  Reg::Add(x, x, y, good ? four : eight);
}

template <bool good>
void misaligned(Ub<float> data, Ub<float>) {
  RegTensor<float> x;
  if (good)
    Reg::Load(x, data + 3);
  else
    Reg::LoadAlign(x, data + 3);
}

template <bool good>
void past_the_buffer(Ub<float> data, Ub<float>) {
  RegTensor<float> x;
  Reg::LoadAlign(x, data + (good ? 448 : 456));
}

template <bool good>
void bytes_left_waiting(Ub<float> data, Ub<float> fresh) {
  RegTensor<float> x;
  Reg::UnalignRegForStore helper;
  Ub<float> target = fresh + 1;
  Reg::LoadAlign(x, data);
  Reg::StoreUnAlign(target, x, helper, 64);
  if (good) Reg::StoreUnAlignPost(target, helper, 0);
}

template <bool good>
void load_without_pre(Ub<float> data, Ub<float>) {
  RegTensor<float> x;
  Reg::UnalignRegForLoad helper;
  if (good) Reg::LoadUnAlignPre(helper, data + 9);
  Reg::LoadUnAlign(x, helper, data + 9);
}

template <bool good>
void packed_with_gaps(Ub<float> data, Ub<float> fresh) {
  RegTensor<uint16_t> x;
  MaskReg mask =
      good ? Reg::CreateMask<uint32_t>() : Reg::CreateMask<uint32_t, Reg::MaskPattern::M4>();
  Reg::LoadAlign(x, Ub<uint16_t>(data));
  Reg::StoreAlign<uint16_t, Reg::StoreDist::DIST_PACK_B32>(Ub<uint16_t>(fresh), x, mask);
}

template <bool good>
void maximum_of_nothing(Ub<float>, Ub<float>) {
  RegTensor<float> x, y;
  MaskReg some = good ? Reg::CreateMask<float>() : Reg::CreateMask<float, Reg::MaskPattern::VL8>();
  Reg::Duplicate(x, -INFINITY);
  Reg::Reduce<Reg::ReduceType::MAX>(y, x, some);
}

template <bool good>
void element_access(Ub<float> data, Ub<float>) {
  RegTensor<float> x;
  if (good)
    Reg::LoadAlign<float, Reg::LoadDist::DIST_BRC_B32>(x, data + 5);
  else
    Reg::Duplicate(x, float(data[5]));
}

template <bool good>
void fine(Ub<float> data, Ub<float>) {
  RegTensor<float> x;
  Reg::LoadAlign(x, data);
}

__simd_vf__ inline void calls_another(Ub<float> data, bool good) {
  if (good)
    fine<true>(data, data);
  else
    asc_vf_call<call>(fine<true>, data, data);
}

}  // namespace

#define PLANTED(f) run(x, fixed ? f<true> : f<false>)

SCENARIO(__vector__, 1, register_load_after_store, "missing-synchronisation") {
  PLANTED(load_after_store);
}
SCENARIO(__vector__, 1, register_load_after_store_of_register, "missing-synchronisation") {
  PLANTED(load_after_store_of_register);
}
SCENARIO(__vector__, 1, register_store_after_load, "missing-synchronisation") {
  PLANTED(store_after_load);
}
SCENARIO(__vector__, 1, register_store_after_store, "missing-synchronisation") {
  PLANTED(store_after_store);
}
SCENARIO(__vector__, 1, register_empty_register, "uninitialised-read") { PLANTED(empty_register); }
SCENARIO(__vector__, 1, register_empty_mask, "uninitialised-mask") { PLANTED(empty_mask); }
SCENARIO(__vector__, 1, register_mask_of_other_width, "uninitialised-mask") {
  PLANTED(mask_of_other_width);
}
SCENARIO(__vector__, 1, register_lanes_of_unwritten_memory, "uninitialised-read") {
  PLANTED(lanes_of_unwritten_memory);
}
SCENARIO(__vector__, 1, register_misaligned, "misaligned") { PLANTED(misaligned); }
SCENARIO(__vector__, 1, register_past_the_buffer, "out-of-range") { PLANTED(past_the_buffer); }
SCENARIO(__vector__, 1, register_bytes_left_waiting, "unaligned-register") {
  PLANTED(bytes_left_waiting);
}
SCENARIO(__vector__, 1, register_load_without_pre, "unaligned-register") {
  PLANTED(load_without_pre);
}
SCENARIO(__vector__, 1, register_packed_with_gaps, "not-modelled") { PLANTED(packed_with_gaps); }
SCENARIO(__vector__, 1, register_maximum_of_nothing, "undefined-result") {
  PLANTED(maximum_of_nothing);
}
SCENARIO(__vector__, 1, register_element_access, "not-modelled") { PLANTED(element_access); }
SCENARIO(__vector__, 1, register_function_as_code, "outside-vector-function") {
  run(x, fine<true>, true, fixed);
}
SCENARIO(__vector__, 1, register_function_too_early, "missing-synchronisation") {
  run(x, fine<true>, fixed);
}
SCENARIO(__vector__, 1, register_function_in_a_function, "nested-vector-function") {
  TPipe pipe;
  TBuf<TPosition::VECCALC> buffer;
  pipe.InitBuffer(buffer, 256);
  asc_vf_call<calls_another>(buffer.Get<float>().GetPhyAddr(), fixed);
}
SCENARIO(__cube__, 1, register_function_on_a_cube_core, "wrong-core") {
  if (!fixed) asc_vf_call<call>(fine<true>, Ub<float>(), Ub<float>());
}

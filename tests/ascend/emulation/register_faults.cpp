// Planted faults of register-level functions, each beside a version without it, for
// test_register_faults.py.
#include <cstring>

#include "kernel.h"

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
__global__ __vector__ void run(Gm<float> in, Function function, int32_t in_kernel, int32_t wait) {
  TPipe pipe;
  TBuf<TPosition::VECCALC> first, second;
  pipe.InitBuffer(first, 2048);
  pipe.InitBuffer(second, 512);
  const auto data = first.Get<float>();
  GlobalTensor<float> from;
  from.SetGlobalBuffer(in);
  DataCopy(data, from, 512);
  if (wait) PipeBarrier<PIPE_ALL>();
  if (in_kernel)
    function(data.GetPhyAddr(), second.Get<float>().GetPhyAddr());
  else
    asc_vf_call<call>(function, data.GetPhyAddr(), second.Get<float>().GetPhyAddr());
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

struct Case {
  const char *name;
  Function bad, good;
};

#define CASE(f) {#f, f<false>, f<true>}
constexpr Case kCases[] = {
    CASE(load_after_store),    CASE(load_after_store_of_register),
    CASE(store_after_load),    CASE(store_after_store),
    CASE(empty_register),      CASE(empty_mask),
    CASE(mask_of_other_width), CASE(lanes_of_unwritten_memory),
    CASE(misaligned),          CASE(past_the_buffer),
    CASE(bytes_left_waiting),  CASE(load_without_pre),
    CASE(packed_with_gaps),    CASE(maximum_of_nothing),
    CASE(element_access),
};

}  // namespace

// The names of the cases, one after the other, "" at the end.
TANDEM_API const char *register_fault_name(int32_t index) {
  return index < int32_t(std::size(kCases)) ? kCases[index].name : "";
}

TANDEM_API int32_t register_fault(int32_t index, int32_t good, const float *data) {
  const Function function = good ? kCases[index].good : kCases[index].bad;
  return TANDEM_LAUNCH(run, 1, nullptr, gm_cast<float>(data), function, 0, 1);
}

// A function called as plain code (good: by asc_vf_call), and one that does not wait for its data.
TANDEM_API int32_t register_outside(int32_t good, const float *data) {
  return TANDEM_LAUNCH(run, 1, nullptr, gm_cast<float>(data), fine<true>, good ? 0 : 1, 1);
}

TANDEM_API int32_t register_too_early(int32_t good, const float *data) {
  return TANDEM_LAUNCH(run, 1, nullptr, gm_cast<float>(data), fine<true>, 0, good);
}

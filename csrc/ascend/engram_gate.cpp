// engram_gate: a task is a stream of a row, which is read once and stays in UB until it is written.
// Tasks of one stream are neighbours, so a block reads the weights of one stream or two.
#include "engram_gate.h"

#include <cmath>

#include "_norm.h"

namespace {

using namespace AscendC;
using rows::as;
using rows::kStep;

constexpr uint32_t kSign = 0x80000000;
constexpr uint32_t kRoleBytes = 32;

struct Gate {
  int64_t rows;
  int32_t m;
  uint32_t width;
  float eps, inverse_root;  // 1 / sqrt(width)

  // Bytes of UB that a bf16 row takes.
  TANDEM_SHARED constexpr uint32_t row() const { return 2 * rows::whole_steps(width); }
  constexpr int64_t room() const { return int64_t(10) * row() + 2 * kRoleBytes; }
};

// sqrt(sum / width + eps) in all lanes, of a sum in 64 lanes.
__simd_callee__ inline void size_of(Reg::RegTensor<float> &sum, uint32_t width, float eps,
                                    Reg::MaskReg &all) {
  Reg::Reduce<Reg::ReduceType::SUM>(sum, sum, all);
  Reg::Duplicate(sum, sum, all);
  rows::root_of_mean(sum, float(width), eps, all);
}

// The gate in all lanes. Sums are taken in 64 lanes and then as a tree, whose order depends on the
// width alone.
__simd_callee__ inline void gate_of(Reg::RegTensor<float> &gate, Ub<bfloat16_t> stream,
                                    Ub<bfloat16_t> key, Ub<float> weight, uint32_t width, float eps,
                                    float inverse_root, Reg::MaskReg &all) {
  Reg::RegTensor<float> h, k, w, squares, keys, dot, one;
  Reg::RegTensor<uint32_t> sign;
  Reg::Duplicate(squares, 0.0f);
  Reg::Duplicate(keys, 0.0f);
  Reg::Duplicate(dot, 0.0f);
  uint32_t left = width;
  const uint16_t count = rows::rounds(width);
  for (uint16_t i = 0; i < count; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(left);
    rows::load(h, stream + i * kStep, mask);
    rows::load(k, key + i * kStep, mask);
    Reg::LoadAlign(w, weight + i * kStep);
    Reg::Mul(w, w, h, mask);
    Reg::MulAddDst(squares, h, h, all);
    Reg::MulAddDst(keys, k, k, all);
    Reg::MulAddDst(dot, w, k, all);
  }
  size_of(squares, width, eps, all);
  size_of(keys, width, eps, all);
  Reg::Reduce<Reg::ReduceType::SUM>(dot, dot, all);
  Reg::Duplicate(dot, dot, all);
  Reg::Mul(squares, squares, keys, all);
  Reg::Div(dot, dot, squares, all);
  Reg::Muls(dot, dot, inverse_root, all);
  Reg::Duplicate(sign, kSign);
  Reg::And(sign, sign, as<uint32_t>(dot), all);
  Reg::Abs(dot, dot, all);
  Reg::Maxs(dot, dot, 1e-6f, all);
  Reg::Sqrt(dot, dot, all);
  Reg::Or(as<uint32_t>(dot), as<uint32_t>(dot), sign, all);
  Reg::Neg(dot, dot, all);
  Reg::Exp(dot, dot, all);
  Reg::Adds(dot, dot, 1.0f, all);
  Reg::Duplicate(one, 1.0f);
  Reg::Div(gate, one, dot, all);
}

__simd_vf__ inline void update_stream(Ub<bfloat16_t> stream, Ub<bfloat16_t> key,
                                      Ub<bfloat16_t> value, Ub<float> weight, Ub<int32_t> role,
                                      Ub<bfloat16_t> updated, uint32_t width, float eps,
                                      float inverse_root) {
  Reg::RegTensor<float> gate, h, v;
  Reg::RegTensor<bfloat16_t> before, after;
  Reg::RegTensor<int32_t> roles;
  Reg::MaskReg all = Reg::CreateMask<float>(), text;
  gate_of(gate, stream, key, weight, width, eps, inverse_root, all);
  Reg::LoadAlign<int32_t, Reg::LoadDist::DIST_BRC_B32>(roles, role);
  Reg::Compares<int32_t, CMPMODE::EQ>(text, roles, int32_t(0), all);
  const uint16_t count = rows::rounds(width);
  for (uint16_t i = 0; i < count; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(width);
    Reg::LoadAlign<bfloat16_t, Reg::LoadDist::DIST_UNPACK_B16>(before, stream + i * kStep);
    Reg::Cast<float, bfloat16_t, rows::kWiden>(h, before, mask);
    rows::load(v, value + i * kStep, mask);
    Reg::MulAddDst(h, v, gate, mask);
    Reg::Cast<bfloat16_t, float, rows::kNarrow>(after, h, mask);
    Reg::Select(as<uint32_t>(after), as<uint32_t>(after), as<uint32_t>(before), text);
    Reg::StoreAlign<bfloat16_t, Reg::StoreDist::DIST_PACK_B32>(updated + i * kStep, after, mask);
  }
}

class EngramGate {
 public:
  __aicore__ inline void run(Gm<bfloat16_t> trunk, Gm<bfloat16_t> kv, Gm<float> qk,
                             Gm<int32_t> roles, Gm<bfloat16_t> updated, const Gate &gate) {
    rows::keep_infinity_and_nan();
    trunk_.SetGlobalBuffer(trunk);
    kv_.SetGlobalBuffer(kv);
    qk_.SetGlobalBuffer(qk);
    roles_.SetGlobalBuffer(roles);
    updated_.SetGlobalBuffer(updated);
    pipe_.InitBuffer(weight_, 1, 2 * gate.row());
    pipe_.InitBuffer(in_, 2, 3 * gate.row() + kRoleBytes);
    pipe_.InitBuffer(out_, 2, gate.row());
    const rows::Share share = rows::share_of(gate.rows * gate.m);
    int64_t task = share.first;
    while (task < share.end) {
      const int64_t stream = task / gate.rows, next = (stream + 1) * gate.rows;
      const int64_t end = next < share.end ? next : share.end;
      LocalTensor<float> weight = weight_.AllocTensor<float>();
      rows::load_row(weight, qk_, stream * gate.width, gate.width);
      weight_.EnQue(weight);
      weight = weight_.DeQue<float>();
      for (; task < end; ++task) update(gate, stream, task - stream * gate.rows, weight);
      weight_.FreeTensor(weight);
    }
  }

 private:
  TPipe pipe_;
  TQue<TPosition::VECIN, 1> weight_, in_;
  TQue<TPosition::VECOUT, 1> out_;
  GlobalTensor<bfloat16_t> trunk_, kv_, updated_;
  GlobalTensor<float> qk_;
  GlobalTensor<int32_t> roles_;

  __aicore__ inline void update(const Gate &gate, int64_t stream, int64_t row,
                                const LocalTensor<float> &weight) {
    const uint32_t step = gate.row() / 2;
    const int64_t place = (row * gate.m + stream) * gate.width;
    const int64_t memory = row * (gate.m + 1) * gate.width;
    LocalTensor<bfloat16_t> in = in_.AllocTensor<bfloat16_t>();
    rows::load_row(in, trunk_, place, gate.width);
    rows::load_row(in[step], kv_, memory + stream * gate.width, gate.width);
    rows::load_row(in[2 * step], kv_, memory + int64_t(gate.m) * gate.width, gate.width);
    rows::load_row(in[3 * step].ReinterpretCast<int32_t>(), roles_, row, 1);
    in_.EnQue(in);
    in = in_.DeQue<bfloat16_t>();
    LocalTensor<bfloat16_t> out = out_.AllocTensor<bfloat16_t>();
    const Ub<bfloat16_t> from = in.GetPhyAddr();
    asc_vf_call<update_stream>(from, from + step, from + 2 * step, weight.GetPhyAddr(),
                               Ub<int32_t>(from + 3 * step), out.GetPhyAddr(), gate.width, gate.eps,
                               gate.inverse_root);
    in_.FreeTensor(in);
    out_.EnQue(out);
    out = out_.DeQue<bfloat16_t>();
    rows::store_row(updated_, place, out, gate.width);
    out_.FreeTensor(out);
  }
};

__global__ __vector__ void engram_gate_kernel(Gm<bfloat16_t> trunk, Gm<bfloat16_t> kv, Gm<float> qk,
                                              Gm<int32_t> roles, Gm<bfloat16_t> updated,
                                              Gate gate) {
  EngramGate().run(trunk, kv, qk, roles, updated, gate);
}

}  // namespace

int32_t tandem_ascend_engram_gate(const tandem_ascend_device *device, void *stream,
                                  const uint16_t *trunk, const uint16_t *kv, const float *qk,
                                  const int32_t *roles, uint16_t *updated, int64_t rows, int32_t m,
                                  int32_t width, float eps) {
  if (rows < 0 || m <= 0 || width <= 0) return TANDEM_BAD_VALUE;
  const Gate gate{rows, m, uint32_t(width), eps, 1.0f / std::sqrt(float(width))};
  if (!::rows::fits(device, gate.room())) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(engram_gate_kernel, ::rows::row_blocks(device, rows * m), stream,
                       gm_cast<bfloat16_t>(trunk), gm_cast<bfloat16_t>(kv), gm_cast<float>(qk),
                       gm_cast<int32_t>(roles), gm_cast<bfloat16_t>(updated), gate);
}

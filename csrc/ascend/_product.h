// The product of a tile on a cube core: x [rows, K] times w [outputs, K] transposed.
//
// Copies to L1 (MTE2), loads to L0 (MTE1), Mmad (M) and Fixpipe (FIX) overlap: two buffers each in
// L1, L0A, L0B and L0C, handed over by a flag forwards and one back. K goes through L1 in chunks
// and through L0 in steps of kStepBytes; every step is one Mmad, so a row's sum is the same in all
// tiles.
#pragma once

#include "_product_plan.h"
#include "kernel.h"

namespace tandem {

// Flags between a cube core and its vector cores, where those bring the weights: for each buffer.
constexpr uint16_t kWeightsReady = 0, kWeightsFree = 2;

constexpr uint32_t kFractalRows = 16, kBlockBytes = 32, kScalesOf = 32, kPairOf = 64;

TANDEM_SHARED inline uint32_t align_to(uint32_t x, uint32_t to) { return (x + to - 1) / to * to; }

// Where a tile's operands lie. Strides count elements, those of scales pairs of bytes.
template <class X, class W, class Out>
struct TileTask {
  Gm<X> x;
  Gm<W> w;
  Gm<half> x_scale, w_scale;
  Gm<Out> y;
  uint64_t x_stride, w_stride, x_scale_stride, w_scale_stride, y_stride;
  uint32_t rows, outputs, depth;
};

// kScaled: fp8 with scales of 32, by MmadMx. kFed: the vector cores bring w to L1 as fractals.
template <class X, class W, class Out, bool kScaled, bool kFed>
class CubeProduct {
 public:
  using Task = TileTask<X, W, Out>;

  __aicore__ inline CubeProduct(const Tile &tile, uint32_t l1_bytes, uint32_t l0_bytes,
                                uint32_t l0c_bytes)
      : tile_(tile), l1_half_(l1_bytes / 2), l0_half_(l0_bytes / 2), l0c_half_(l0c_bytes / 2) {}

  // Once before the first tile, and once after the last one.
  __aicore__ inline void begin() {
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(i);
      AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(i);
      AscendC::SetFlag<AscendC::HardEvent::FIX_M>(i);
    }
  }
  __aicore__ inline void end() {
    for (int32_t i = 0; i < 2; ++i) {
      AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(i);
      AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(i);
      AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(i);
    }
  }

  __aicore__ inline void run(const Task &task) {
    const uint32_t chunks = (task.depth + chunk_depth() - 1) / chunk_depth();
    copy(task, 0);
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      if (chunk + 1 < chunks) copy(task, chunk + 1);
      multiply(task, chunk);
    }
    store(task);
  }

 private:
  static constexpr uint32_t kSize = sizeof(X), kPerBlock = kBlockBytes / kSize;
  static constexpr uint32_t kStep = kStepBytes / kSize;
  const Tile tile_;
  const uint32_t l1_half_, l0_half_, l0c_half_;
  uint32_t copied_ = 0, used_ = 0, steps_ = 0, results_ = 0;  // chunks copied and used, and so on

  __aicore__ inline uint32_t chunk_depth() const { return tile_.chunk / kSize; }
  __aicore__ inline uint32_t first(uint32_t chunk) const { return chunk * chunk_depth(); }
  __aicore__ inline uint32_t depth_of(const Task &task, uint32_t chunk) const {
    const uint32_t left = task.depth - first(chunk);
    return left < chunk_depth() ? left : chunk_depth();
  }
  // What MmadMx sums over: whole pairs of scales.
  __aicore__ static inline uint32_t filled(uint32_t depth) {
    return kScaled ? align_to(depth, kPairOf) : depth;
  }

  // A buffer of L1: x, w, and their scales.
  template <class T>
  __aicore__ inline AscendC::LocalTensor<T> l1(uint32_t buffer, uint32_t offset,
                                               uint32_t bytes) const {
    return AscendC::LocalTensor<T>(AscendC::TPosition::A1, buffer * l1_half_ + offset,
                                   bytes / sizeof(T));
  }
  __aicore__ inline uint32_t x_bytes() const { return tile_.rows * tile_.chunk; }
  __aicore__ inline uint32_t w_bytes() const { return tile_.outputs * tile_.chunk; }
  __aicore__ inline AscendC::LocalTensor<X> l1_x(uint32_t buffer) const {
    return l1<X>(buffer, 0, x_bytes());
  }
  __aicore__ inline AscendC::LocalTensor<W> l1_w(uint32_t buffer) const {
    return l1<W>(buffer, x_bytes(), w_bytes());
  }
  __aicore__ inline AscendC::LocalTensor<fp8_e8m0_t> l1_x_scale(uint32_t buffer) const {
    return l1<fp8_e8m0_t>(buffer, x_bytes() + w_bytes(), x_bytes() / kScalesOf);
  }
  __aicore__ inline AscendC::LocalTensor<fp8_e8m0_t> l1_w_scale(uint32_t buffer) const {
    return l1<fp8_e8m0_t>(buffer, x_bytes() + w_bytes() + x_bytes() / kScalesOf,
                          w_bytes() / kScalesOf);
  }

  // Row-major codes to fractals. Where scales come in pairs, K is filled up to whole pairs.
  template <class T>
  __aicore__ static inline void copy_codes(const AscendC::LocalTensor<T> &to, Gm<T> from,
                                           uint64_t stride, uint32_t rows, uint32_t depth) {
    AscendC::GlobalTensor<T> source;
    source.SetGlobalBuffer(from);
    AscendC::Nd2NzParams params;
    params.ndNum = 1;
    params.nValue = rows;
    params.dValue = depth;
    params.srcNdMatrixStride = 0;
    params.srcDValue = stride;
    params.dstNzC0Stride = align_to(rows, kFractalRows);
    params.dstNzNStride = 1;
    params.dstNzMatrixStride = 0;
    AscendC::DataCopy(to, source, params);
    if (filled(depth) == align_to(depth, kPerBlock)) return;
    AscendC::InitConstValueParams<uint16_t> zeros;
    zeros.repeatTimes = 1;
    zeros.blockNum = align_to(rows, kFractalRows);
    zeros.dstGap = 0;
    zeros.initValue = 0;
    const uint32_t column = align_to(depth, kPerBlock) * align_to(rows, kFractalRows);
    AscendC::Fill(to[column].template ReinterpretCast<uint16_t>(), zeros);
  }

  __aicore__ static inline void copy_scales(const AscendC::LocalTensor<fp8_e8m0_t> &to,
                                            Gm<half> from, uint64_t stride, uint32_t rows,
                                            uint32_t pairs) {
    AscendC::GlobalTensor<half> source;
    source.SetGlobalBuffer(from);
    AscendC::Dn2NzParams params;
    params.dnNum = 1;
    params.nValue = pairs;
    params.dValue = rows;
    params.srcDnMatrixStride = 0;
    params.srcDValue = stride;
    params.dstNzC0Stride = pairs;
    params.dstNzNStride = 1;
    params.dstNzMatrixStride = 0;
    AscendC::DataCopy(to.template ReinterpretCast<half>(), source, params);
  }

  __aicore__ inline void copy(const Task &task, uint32_t chunk) {
    const uint32_t buffer = copied_++ % 2, depth = depth_of(task, chunk), start = first(chunk);
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(buffer);
    copy_codes(l1_x(buffer), task.x + start, task.x_stride, task.rows, depth);
    if constexpr (!kFed)
      copy_codes(l1_w(buffer), task.w + start, task.w_stride, task.outputs, depth);
    if constexpr (kScaled) {
      const uint32_t pairs = filled(depth) / kPairOf, pair = start / kPairOf;
      copy_scales(l1_x_scale(buffer), task.x_scale + pair, task.x_scale_stride, task.rows, pairs);
      copy_scales(l1_w_scale(buffer), task.w_scale + pair, task.w_scale_stride, task.outputs,
                  pairs);
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(buffer);
  }

  // A step of an operand to L0, with its scales.
  template <class T>
  __aicore__ static inline void load(const AscendC::LocalTensor<T> &to,
                                     const AscendC::LocalTensor<T> &from,
                                     const AscendC::LocalTensor<fp8_e8m0_t> &scales, uint32_t rows,
                                     uint32_t start, uint32_t depth, uint32_t pairs) {
    const uint32_t fractals = align_to(rows, kFractalRows) / kFractalRows;
    AscendC::LoadData2DParamsV2 params;
    params.mStartPosition = 0;
    params.kStartPosition = start / kPerBlock;
    params.mStep = fractals;
    params.kStep = align_to(depth, kPerBlock) / kPerBlock;
    params.srcStride = fractals;
    params.dstStride = fractals;
    params.ifTranspose = false;
    params.sid = 0;
    if constexpr (!kScaled) {
      AscendC::LoadData(to, from, params);
    } else {
      AscendC::LoadData2DMxParams of_scales;
      of_scales.xStartPosition = 0;
      of_scales.yStartPosition = start / kPairOf;
      of_scales.xStep = fractals;
      of_scales.yStep = depth / kPairOf;
      of_scales.srcStride = pairs;
      of_scales.dstStride = depth / kPairOf;
      AscendC::LoadData(to, from, scales, params, of_scales);
    }
  }

  __aicore__ inline AscendC::LocalTensor<float> result() const {
    return AscendC::LocalTensor<float>(AscendC::TPosition::CO1, results_ % 2 * l0c_half_,
                                       l0c_half_ / 4);
  }

  __aicore__ inline void multiply(const Task &task, uint32_t chunk) {
    const uint32_t buffer = used_++ % 2, depth = filled(depth_of(task, chunk));
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(buffer);
    if constexpr (kFed) AscendC::CrossCoreWaitFlag<2, PIPE_MTE1>(kWeightsReady + buffer);
    for (uint32_t start = 0; start < depth; start += kStep) {
      const uint32_t half = steps_++ % 2, count = depth - start < kStep ? depth - start : kStep;
      const AscendC::LocalTensor<X> a(AscendC::TPosition::A2, half * l0_half_, l0_half_ / kSize);
      const AscendC::LocalTensor<W> b(AscendC::TPosition::B2, half * l0_half_, l0_half_ / kSize);
      AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(half);
      load(a, l1_x(buffer), l1_x_scale(buffer), task.rows, start, count, depth / kPairOf);
      load(b, l1_w(buffer), l1_w_scale(buffer), task.outputs, start, count, depth / kPairOf);
      AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(half);
      AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(half);
      const bool opens = chunk == 0 && start == 0;
      if (opens) AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(results_ % 2);
      AscendC::MmadParams params;
      params.m = task.rows;
      params.n = task.outputs;
      params.k = count;
      params.cmatrixInitVal = opens;
      params.disableGemv = true;
      if constexpr (kScaled) {
        AscendC::MmadMx(result(), a, b, params);
      } else {
        AscendC::Mmad(result(), a, b, params);
      }
      // Documented: sums of fewer than ten fractals do not wait for the one before by themselves.
      if ((task.rows / 16) * (task.outputs / 16) < 10) AscendC::PipeBarrier<PIPE_M>();
      AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(half);
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(buffer);
    if constexpr (kFed) AscendC::CrossCoreSetFlag<2, PIPE_MTE1>(kWeightsFree + buffer);
  }

  __aicore__ inline void store(const Task &task) {
    const uint32_t which = results_ % 2;
    AscendC::SetFlag<AscendC::HardEvent::M_FIX>(which);
    AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(which);
    AscendC::GlobalTensor<Out> to;
    to.SetGlobalBuffer(task.y);
    AscendC::FixpipeParamsArch3510<AscendC::CO2Layout::ROW_MAJOR> params;
    params.nSize = task.outputs;
    params.mSize = task.rows;
    params.srcStride = align_to(task.rows, kFractalRows);
    params.dstStride = task.y_stride;
    params.quantPre = sizeof(Out) == 2 ? QuantMode_t::F322BF16 : QuantMode_t::NoQuant;
    AscendC::Fixpipe<Out, float, AscendC::CFG_ROW_MAJOR>(to, result(), params);
    AscendC::SetFlag<AscendC::HardEvent::FIX_M>(which);
    ++results_;
  }
};

// A kernel of products starts with this: f32 stays f32, and bf16 results keep infinity and NaN.
__aicore__ inline void begin_products() {
  AscendC::InitSocState();
  AscendC::SetCtrlSpr<48, 48>(1);
  AscendC::SetHF32Mode(AscendC::HF32Mode::DISABLE);
}

}  // namespace tandem

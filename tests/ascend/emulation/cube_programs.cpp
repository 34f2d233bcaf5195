// Programs for the cube's emulation: products that are right, and the same with one planted fault.
#include <cstring>

#include "kernel.h"

using namespace AscendC;

namespace {

enum Plant : int32_t {
  kRight = 0,
  kNoCopyFlag,     // L1 is loaded from before the copy into it is known to be done
  kNoLoadFlag,     // Mmad starts before LoadData is done
  kNoProductFlag,  // Fixpipe starts before Mmad is done
  kNoFixpipeFlag,  // the next tile's Mmad overwrites what Fixpipe still reads
  kNoReleaseFlag,  // LoadData overwrites what Mmad still reads
  kNoL1Release,    // a copy overwrites what LoadData still reads
  kNoBarrier,      // two small sums into the same L0C without a barrier
  kFewFractals,    // the last, partly filled fractal of rows is not loaded
  kNoInit,         // the first product adds to an L0C that nothing wrote
  kL0Overflow,     // a tile of the left matrix that L0A does not hold
  kL1Overflow,     // a tile that L1 does not hold
  kMisalignedL0c,  // results at 512 bytes
  kGemv,           // one row in GEMV mode
  kNoTailFill,     // MmadMx over K that is a multiple of 32 only, L1 not filled up
  kOddDepth,       // the same, and MmadMx told so
  kNoScales,       // LoadData without the scales
  kFewScales,      // scales of half of K
  kWrongColumn,    // the columns of L1 lie closer together than they were written
};

constexpr uint32_t up(uint32_t x, uint32_t to) { return (x + to - 1) / to * to; }
constexpr uint32_t kStep = 64;  // bytes of K in a step: two columns of fractals

// C [m, n] = A [m, k] times B [n, k] transposed, in tiles of 32 rows; K in steps, buffers in L0
// used twice.
template <class T, class Out>
struct Product {
  Gm<T> a, b;
  Gm<Out> c;
  uint32_t m, n, k;
  int32_t plant;

  static constexpr uint32_t kPerStep = kStep / sizeof(T);
  static constexpr uint32_t kTile = 32;

  void copy(const LocalTensor<T> &to, Gm<T> from, uint32_t rows) const {
    GlobalTensor<T> source;
    source.SetGlobalBuffer(from);
    Nd2NzParams p;
    p.nValue = rows;
    p.dValue = k;
    p.srcDValue = k;
    p.dstNzC0Stride = up(rows, 16);
    p.dstNzNStride = 1;
    DataCopy(to, source, p);
  }

  void load(const LocalTensor<T> &to, const LocalTensor<T> &from, uint32_t rows,
            uint32_t step) const {
    const uint32_t fractals = up(rows, 16) / 16;
    LoadData2DParamsV2 p;
    p.kStartPosition = step * 2;
    p.mStep = plant == kFewFractals && rows % 16 != 0 ? fractals - 1 : fractals;
    p.kStep = up(depth(step) * sizeof(T), 32) / 32;
    p.srcStride = plant == kWrongColumn ? fractals - 1 : fractals;
    p.dstStride = fractals;
    LoadData(to, from, p);
  }

  uint32_t steps() const { return (k + kPerStep - 1) / kPerStep; }
  uint32_t depth(uint32_t step) const {
    return k - step * kPerStep < kPerStep ? k - step * kPerStep : kPerStep;
  }

  void out(const LocalTensor<float> &from, uint32_t row, uint32_t rows) const {
    GlobalTensor<Out> to;
    to.SetGlobalBuffer(c + int64_t(row) * n);
    FixpipeParamsArch3510<CO2Layout::ROW_MAJOR> p;
    p.nSize = n;
    p.mSize = rows;
    p.srcStride = up(rows, 16);
    p.dstStride = n;
    p.quantPre = sizeof(Out) == 2 ? QuantMode_t::F322BF16 : QuantMode_t::NoQuant;
    Fixpipe<Out, float, CFG_ROW_MAJOR>(to, from, p);
  }

  void tile(uint32_t row, bool first, bool last) const {
    const uint32_t rows = m - row < kTile ? m - row : kTile;
    LocalTensor<T> a1(TPosition::A1, 0,
                      plant == kL1Overflow ? (600 << 10) / sizeof(T) : (128 << 10) / sizeof(T));
    LocalTensor<T> b1(TPosition::B1, 256 << 10, (256 << 10) / sizeof(T));
    LocalTensor<float> c1(TPosition::CO1, plant == kMisalignedL0c ? 512 : 0, 32 << 10);
    if (!first && plant != kNoL1Release) WaitFlag<HardEvent::MTE1_MTE2>(EVENT_ID0);
    copy(a1, a + int64_t(row) * k, rows);
    copy(b1, b, n);
    if (plant != kNoCopyFlag) SetFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
    if (plant != kNoCopyFlag) WaitFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
    if (!first && plant != kNoFixpipeFlag) WaitFlag<HardEvent::FIX_M>(EVENT_ID0);
    for (uint32_t step = 0; step < steps(); ++step) {
      const int32_t half = step % 2;
      const uint32_t a_size = (plant == kL0Overflow ? 70 << 10 : 4 << 10) / sizeof(T);
      LocalTensor<T> a2(TPosition::A2, half * (32 << 10), a_size);
      LocalTensor<T> b2(TPosition::B2, half * (32 << 10), (32 << 10) / sizeof(T));
      if (plant != kNoReleaseFlag) WaitFlag<HardEvent::M_MTE1>(half);
      load(a2, a1, rows, step);
      load(b2, b1, n, step);
      if (plant != kNoLoadFlag) SetFlag<HardEvent::MTE1_M>(half);
      if (plant != kNoLoadFlag) WaitFlag<HardEvent::MTE1_M>(half);
      MmadParams p;
      p.m = rows;
      p.n = n;
      p.k = depth(step);
      p.cmatrixInitVal = step == 0 && plant != kNoInit;
      p.disableGemv = plant != kGemv;
      Mmad(c1, a2, b2, p);
      if (plant != kNoBarrier) PipeBarrier<PIPE_M>();
      if (plant != kNoReleaseFlag) SetFlag<HardEvent::M_MTE1>(half);
    }
    if (!last && plant != kNoL1Release) SetFlag<HardEvent::MTE1_MTE2>(EVENT_ID0);
    if (plant != kNoProductFlag) SetFlag<HardEvent::M_FIX>(EVENT_ID0);
    if (plant != kNoProductFlag) WaitFlag<HardEvent::M_FIX>(EVENT_ID0);
    out(c1, row, rows);
    if (!last && plant != kNoFixpipeFlag) SetFlag<HardEvent::FIX_M>(EVENT_ID0);
  }

  void run() const {
    InitSocState();
    for (int32_t half = 0; half < 2 && plant != kNoReleaseFlag; ++half)
      SetFlag<HardEvent::M_MTE1>(half);
    for (uint32_t row = 0; row < m; row += kTile) tile(row, row == 0, row + kTile >= m);
    for (int32_t half = 0; half < 2 && plant != kNoReleaseFlag; ++half)
      WaitFlag<HardEvent::M_MTE1>(half);
    PipeBarrier<PIPE_ALL>();
  }
};

// C = A times B transposed with scales, in one step: codes [m, bytes], scales [m, 2 * pairs].
template <class T>
struct ScaledProduct {
  Gm<T> a, b;
  Gm<half> a_scale, b_scale;
  Gm<float> c;
  uint32_t m, n, k;
  int32_t plant;

  static constexpr uint32_t kPerByte = sizeof(T) == 1 && !std::is_same_v<T, fp8_e4m3fn_t> ? 2 : 1;
  uint32_t bytes() const { return k / kPerByte; }
  uint32_t filled() const { return up(k, 64) / kPerByte; }
  uint32_t pairs() const { return up(k, 64) / 64; }

  void copy(const LocalTensor<T> &to, Gm<T> from, uint32_t rows) const {
    GlobalTensor<T> source;
    source.SetGlobalBuffer(from);
    Nd2NzParams p;
    p.nValue = rows;
    p.dValue = bytes();
    p.srcDValue = bytes();
    p.dstNzC0Stride = up(rows, 16);
    p.dstNzNStride = 1;
    DataCopy(to, source, p);
    if (up(bytes(), 32) == filled() || plant == kNoTailFill) return;
    InitConstValueParams<uint16_t> fill;
    fill.repeatTimes = 1;
    fill.blockNum = up(rows, 16);
    Fill(to[up(rows, 16) * up(bytes(), 32)].template ReinterpretCast<uint16_t>(), fill);
  }

  void copy_scales(const LocalTensor<fp8_e8m0_t> &to, Gm<half> from, uint32_t rows) const {
    GlobalTensor<half> source;
    source.SetGlobalBuffer(from);
    Dn2NzParams p;
    p.dValue = rows;
    p.nValue = pairs();
    p.srcDValue = pairs();
    p.dstNzC0Stride = pairs();
    p.dstNzNStride = 1;
    DataCopy(to.ReinterpretCast<half>(), source, p);
  }

  void load(const LocalTensor<T> &to, const LocalTensor<T> &from,
            const LocalTensor<fp8_e8m0_t> &scales, uint32_t rows) const {
    const uint16_t fractals = up(rows, 16) / 16;
    LoadData2DParamsV2 p;
    p.mStep = fractals;
    p.kStep = filled() / 32;
    p.srcStride = fractals;
    p.dstStride = fractals;
    if (plant == kNoScales) return LoadData(to, from, p);
    LoadData2DMxParams x;
    x.xStep = fractals;
    x.yStep = plant == kFewScales ? pairs() / 2 : pairs();
    x.srcStride = pairs();
    x.dstStride = pairs();
    LoadData(to, from, scales, p, x);
  }

  void run() const {
    InitSocState();
    LocalTensor<T> a1(TPosition::A1, 0, 64 << 10), b1(TPosition::B1, 128 << 10, 64 << 10);
    LocalTensor<fp8_e8m0_t> as(TPosition::A1, 256 << 10, 8 << 10),
        bs(TPosition::B1, 300 << 10, 8 << 10);
    LocalTensor<T> a2(TPosition::A2, 0, 64 << 10), b2(TPosition::B2, 0, 64 << 10);
    LocalTensor<float> c1(TPosition::CO1, 0, 32 << 10);
    copy(a1, a, m);
    copy(b1, b, n);
    copy_scales(as, a_scale, m);
    copy_scales(bs, b_scale, n);
    SetFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
    load(a2, a1, as, m);
    load(b2, b1, bs, n);
    SetFlag<HardEvent::MTE1_M>(EVENT_ID0);
    WaitFlag<HardEvent::MTE1_M>(EVENT_ID0);
    MmadParams p;
    p.m = m;
    p.n = n;
    p.k = plant == kOddDepth ? k : up(k, 64);
    p.disableGemv = true;
    MmadMx(c1, a2, b2, p);
    SetFlag<HardEvent::M_FIX>(EVENT_ID0);
    WaitFlag<HardEvent::M_FIX>(EVENT_ID0);
    GlobalTensor<float> to;
    to.SetGlobalBuffer(c);
    FixpipeParamsArch3510<CO2Layout::ROW_MAJOR> out;
    out.nSize = n;
    out.mSize = m;
    out.srcStride = up(m, 16);
    out.dstStride = n;
    Fixpipe<float, float, CFG_ROW_MAJOR>(to, c1, out);
    PipeBarrier<PIPE_ALL>();
  }
};

__global__ __cube__ void product_bf16(Gm<bfloat16_t> a, Gm<bfloat16_t> b, Gm<float> c, uint32_t m,
                                      uint32_t n, uint32_t k, int32_t plant) {
  Product<bfloat16_t, float>{a, b, c, m, n, k, plant}.run();
}

// Results in bf16; `keep`: infinities and NaN stay what they are.
__global__ __cube__ void product_narrow(Gm<bfloat16_t> a, Gm<bfloat16_t> b, Gm<bfloat16_t> c,
                                        uint32_t m, uint32_t n, uint32_t k, int32_t keep) {
  SetCtrlSpr<48, 48>(keep);
  Product<bfloat16_t, bfloat16_t>{a, b, c, m, n, k, 0}.run();
}

__global__ __cube__ void product_f32(Gm<float> a, Gm<float> b, Gm<float> c, uint32_t m, uint32_t n,
                                     uint32_t k) {
  Product<float, float>{a, b, c, m, n, k, 0}.run();
}

__global__ __cube__ void product_mx8(Gm<fp8_e4m3fn_t> a, Gm<half> as, Gm<fp8_e4m3fn_t> b,
                                     Gm<half> bs, Gm<float> c, uint32_t m, uint32_t n, uint32_t k,
                                     int32_t plant) {
  ScaledProduct<fp8_e4m3fn_t>{a, b, as, bs, c, m, n, k, plant}.run();
}

__global__ __cube__ void product_mx4(Gm<fp4x2_e2m1_t> a, Gm<half> as, Gm<fp4x2_e2m1_t> b,
                                     Gm<half> bs, Gm<float> c, uint32_t m, uint32_t n, uint32_t k,
                                     int32_t plant) {
  ScaledProduct<fp4x2_e2m1_t>{a, b, as, bs, c, m, n, k, plant}.run();
}

// A copy to L1 and a load to L0, whose contents the test then looks at.
__global__ __cube__ void move(Gm<bfloat16_t> x, uint32_t rows, uint32_t columns, int32_t transposed,
                              int32_t right) {
  InitSocState();
  GlobalTensor<bfloat16_t> source;
  source.SetGlobalBuffer(x);
  LocalTensor<bfloat16_t> l1(TPosition::A1, 0, 32 << 10);
  Nd2NzParams p;
  p.nValue = rows;
  p.dValue = columns;
  p.srcDValue = columns;
  p.dstNzC0Stride = up(rows, 16);
  p.dstNzNStride = 1;
  DataCopy(l1, source, p);
  SetFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
  LoadData2DParamsV2 load;
  load.mStep = up(rows, 16) / 16;
  load.kStep = up(columns, 16) / 16;
  load.srcStride = load.mStep;
  load.dstStride = transposed ? load.kStep : load.mStep;
  load.ifTranspose = transposed != 0;
  LoadData(LocalTensor<bfloat16_t>(right ? TPosition::B2 : TPosition::A2, 0, 32 << 10), l1, load);
  PipeBarrier<PIPE_ALL>();
}

// Scales [rows, 2 * pairs] to L1 and on to the memory beside L0A, from pair `first` on.
__global__ __cube__ void move_scales(Gm<half> x, uint32_t rows, uint32_t pairs, uint32_t first) {
  InitSocState();
  GlobalTensor<half> source;
  source.SetGlobalBuffer(x);
  LocalTensor<half> l1(TPosition::A1, 0, 16 << 10);
  Dn2NzParams p;
  p.dValue = rows;
  p.nValue = pairs;
  p.srcDValue = pairs;
  p.dstNzC0Stride = pairs;
  p.dstNzNStride = 1;
  DataCopy(l1, source, p);
  SetFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
  LoadData2DMxParams scales;
  scales.yStartPosition = first;
  scales.xStep = up(rows, 16) / 16;
  scales.yStep = pairs - first;
  scales.srcStride = pairs;
  scales.dstStride = pairs - first;
  LocalTensor<fp8_e4m3fn_t> a1(TPosition::A1, 128 << 10, 1024), a2(TPosition::A2, 1024, 1024);
  LoadData(a2, a1, l1.ReinterpretCast<fp8_e8m0_t>(), LoadData2DParamsV2{}, scales);
  PipeBarrier<PIPE_ALL>();
}

}  // namespace

TANDEM_API int32_t cube_product(const void *a, const void *b, void *c, int32_t m, int32_t n,
                                int32_t k, int32_t plant) {
  return TANDEM_LAUNCH(product_bf16, 1, nullptr, gm_cast<bfloat16_t>(a), gm_cast<bfloat16_t>(b),
                       gm_cast<float>(c), m, n, k, plant);
}

TANDEM_API int32_t cube_product_narrow(const void *a, const void *b, void *c, int32_t m, int32_t n,
                                       int32_t k, int32_t keep) {
  return TANDEM_LAUNCH(product_narrow, 1, nullptr, gm_cast<bfloat16_t>(a), gm_cast<bfloat16_t>(b),
                       gm_cast<bfloat16_t>(c), m, n, k, keep);
}

TANDEM_API int32_t cube_product_f32(const void *a, const void *b, void *c, int32_t m, int32_t n,
                                    int32_t k) {
  return TANDEM_LAUNCH(product_f32, 1, nullptr, gm_cast<float>(a), gm_cast<float>(b),
                       gm_cast<float>(c), m, n, k);
}

TANDEM_API int32_t cube_product_mx8(const void *a, const void *as, const void *b, const void *bs,
                                    void *c, int32_t m, int32_t n, int32_t k, int32_t plant) {
  return TANDEM_LAUNCH(product_mx8, 1, nullptr, gm_cast<fp8_e4m3fn_t>(a), gm_cast<half>(as),
                       gm_cast<fp8_e4m3fn_t>(b), gm_cast<half>(bs), gm_cast<float>(c), m, n, k,
                       plant);
}

TANDEM_API int32_t cube_product_mx4(const void *a, const void *as, const void *b, const void *bs,
                                    void *c, int32_t m, int32_t n, int32_t k, int32_t plant) {
  return TANDEM_LAUNCH(product_mx4, 1, nullptr, gm_cast<fp4x2_e2m1_t>(a), gm_cast<half>(as),
                       gm_cast<fp4x2_e2m1_t>(b), gm_cast<half>(bs), gm_cast<float>(c), m, n, k,
                       plant);
}

TANDEM_API int32_t cube_move(const void *x, int32_t rows, int32_t columns, int32_t transposed,
                             int32_t right) {
  return TANDEM_LAUNCH(move, 1, nullptr, gm_cast<bfloat16_t>(x), rows, columns, transposed, right);
}

TANDEM_API int32_t cube_move_scales(const void *x, int32_t rows, int32_t pairs, int32_t first) {
  return TANDEM_LAUNCH(move_scales, 1, nullptr, gm_cast<half>(x), rows, pairs, first);
}

// Bytes of a memory of the first cube core as the last launch left them.
TANDEM_API void cube_peek(int32_t space, int32_t offset, int32_t bytes, void *out) {
  using namespace tandem::emulation;
  std::memcpy(out, core_at(0).memory(static_cast<Space>(space)).bytes + offset, bytes);
}

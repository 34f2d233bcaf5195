// grouped_linear: rows sorted by expert, each times the weight of its expert.
//
// A block is a cube core with its two vector cores. All three go through the same tiles; of fp4
// weights the vector cores bring each chunk to L1 as fp8, then they clear the rows of no expert.
#include "grouped_linear.h"

#include "_product_feed.h"

using namespace tandem;

namespace {

// All that the kernel is told but pointers.
struct ExpertShape {
  uint32_t rows, experts, outputs, depth;
  Tile tile;
  uint32_t blocks, l1_bytes, l0_bytes, l0c_bytes;
};

// f(expert, first row, rows, first output, outputs) for the tiles of a block; tiles of the same
// weights follow one another.
template <class F>
__aicore__ inline void each_tile(Gm<int32_t> ends, const ExpertShape &s, uint32_t block, F f) {
  uint32_t first = 0, i = 0;
  for (uint32_t expert = 0; expert < s.experts; ++expert) {
    const uint32_t last = ends == nullptr ? s.rows : uint32_t(int32_t(ends[expert]));
    for (uint32_t output = 0; output < s.outputs && first < last; output += s.tile.outputs)
      for (uint32_t row = first; row < last; row += s.tile.rows)
        if (i++ % s.blocks == block)
          f(expert, row, last - row < s.tile.rows ? last - row : s.tile.rows, output,
            s.outputs - output < s.tile.outputs ? s.outputs - output : s.tile.outputs);
    first = last > first ? last : first;
  }
}

constexpr uint32_t kClearBytes = 8192;

__simd_vf__ inline void clear_bytes(Ub<uint8_t> to, uint32_t bytes) {
  namespace Reg = AscendC::Reg;
  Reg::MaskReg all = Reg::CreateMask<uint8_t, Reg::MaskPattern::ALL>();
  Reg::RegTensor<uint8_t> zero;
  Reg::Duplicate(zero, uint8_t(0), all);
  for (uint16_t i = 0; i < uint16_t(bytes / kRegisterBytes); ++i)
    Reg::StoreAlign(to + i * kRegisterBytes, zero, all);
}

// Rows past the last expert's, dealt to all vector cores.
template <class Out>
__aicore__ inline void clear_rows(Gm<int32_t> ends, Gm<Out> y, const ExpertShape &s) {
  const uint32_t first = ends == nullptr ? s.rows : uint32_t(int32_t(ends[s.experts - 1]));
  if (first + uint32_t(AscendC::GetBlockIdx()) >= s.rows) return;
  const uint32_t width = s.outputs * sizeof(Out);
  const uint32_t held = align_to(width < kClearBytes ? width : kClearBytes, kRegisterBytes);
  const AscendC::LocalTensor<uint8_t> zeros(AscendC::TPosition::VECOUT, 0, held);
  asc_vf_call<clear_bytes>(zeros.GetPhyAddr(), held);
  AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID2);
  AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID2);
  for (uint32_t row = first + uint32_t(AscendC::GetBlockIdx()); row < s.rows; row += 2 * s.blocks)
    for (uint32_t start = 0; start < width; start += kClearBytes) {
      AscendC::GlobalTensor<uint8_t> to;
      to.SetGlobalBuffer(Gm<uint8_t>(y + uint64_t(row) * s.outputs) + start);
      AscendC::DataCopyExtParams bytes;
      bytes.blockCount = 1;
      bytes.blockLen = width - start < kClearBytes ? width - start : kClearBytes;
      bytes.srcStride = 0;
      bytes.dstStride = 0;
      bytes.rsv = 0;
      AscendC::DataCopyPad(to, zeros, bytes);
    }
}

// What a tile of each_tile is to a cube core.
template <class Out, bool kFed>
struct CubeTiles {
  using Product = CubeProduct<fp8_e4m3fn_t, fp8_e4m3fn_t, Out, true, kFed>;
  Product &product;
  const ExpertShape &s;
  Gm<fp8_e4m3fn_t> x;
  Gm<half> x_scale;
  Gm<uint8_t> w;
  Gm<half> w_scale;
  Gm<Out> y;

  __aicore__ inline void operator()(uint32_t expert, uint32_t row, uint32_t rows, uint32_t output,
                                    uint32_t outputs) const {
    const uint32_t pairs = (s.depth + kPairOf - 1) / kPairOf;
    const uint64_t line = uint64_t(expert) * s.outputs + output;
    typename Product::Task task;
    task.x = x + uint64_t(row) * s.depth;
    task.w = Gm<fp8_e4m3fn_t>(w) + (kFed ? 0 : line * s.depth);
    task.x_scale = x_scale + uint64_t(row) * pairs;
    task.w_scale = w_scale + line * pairs;
    task.y = y + uint64_t(row) * s.outputs + output;
    task.x_stride = s.depth;
    task.w_stride = s.depth;
    task.x_scale_stride = pairs;
    task.w_scale_stride = pairs;
    task.y_stride = s.outputs;
    task.rows = rows;
    task.outputs = outputs;
    task.depth = s.depth;
    product.run(task);
  }
};

// The same to a vector core that feeds it.
struct FeedTiles {
  WeightFeed &feed;
  const ExpertShape &s;
  Gm<uint8_t> w;

  __aicore__ inline void operator()(uint32_t expert, uint32_t, uint32_t, uint32_t output,
                                    uint32_t outputs) const {
    const uint64_t groups = align_to(s.depth, kPairOf) / kScalesOf;
    feed.run(w + (expert * groups * s.outputs + output) * kGroupBytes, s.outputs, outputs, s.depth);
  }
};

template <class Out, bool kFed>
__aicore__ inline void cube_side(Gm<fp8_e4m3fn_t> x, Gm<half> x_scale, Gm<uint8_t> w,
                                 Gm<half> w_scale, Gm<int32_t> ends, Gm<Out> y,
                                 const ExpertShape &s) {
  begin_products();
  typename CubeTiles<Out, kFed>::Product product(s.tile, s.l1_bytes, s.l0_bytes, s.l0c_bytes);
  product.begin();
  each_tile(ends, s, uint32_t(AscendC::GetBlockIdx()),
            CubeTiles<Out, kFed>{product, s, x, x_scale, w, w_scale, y});
  product.end();
}

template <class Out, bool kFed>
__aicore__ inline void vector_side(Gm<uint8_t> w, Gm<int32_t> ends, Gm<Out> y,
                                   const ExpertShape &s) {
  AscendC::InitSocState();
  if constexpr (kFed) {
    WeightFeed feed(s.tile, s.l1_bytes);
    feed.begin();
    each_tile(ends, s, uint32_t(AscendC::GetBlockIdx()) / 2, FeedTiles{feed, s, w});
    feed.end();
  }
  clear_rows(ends, y, s);
}

}  // namespace

#define TANDEM_GROUPED(name, out, fed)                                                         \
  __global__ __mix__(1, 2) void name(                                                          \
      Gm<fp8_e4m3fn_t> x, Gm<half> x_scale, Gm<uint8_t> w, Gm<half> w_scale, Gm<int32_t> ends, \
      Gm<out> y, uint32_t rows, uint32_t experts, uint32_t outputs, uint32_t depth,            \
      uint32_t tile_rows, uint32_t tile_outputs, uint32_t chunk, uint32_t blocks,              \
      uint32_t l1_bytes, uint32_t l0_bytes, uint32_t l0c_bytes) {                              \
    const ExpertShape shape{                                                                   \
        rows,   experts,  outputs,  depth,    {tile_rows, tile_outputs, chunk},                \
        blocks, l1_bytes, l0_bytes, l0c_bytes};                                                \
    if ASCEND_IS_AIC {                                                                         \
      cube_side<out, fed>(x, x_scale, w, w_scale, ends, y, shape);                             \
    }                                                                                          \
    if ASCEND_IS_AIV {                                                                         \
      vector_side<out, fed>(w, ends, y, shape);                                                \
    }                                                                                          \
    AscendC::PipeBarrier<PIPE_ALL>();                                                          \
  }

TANDEM_GROUPED(grouped_mx8_to_bf16, bfloat16_t, false)
TANDEM_GROUPED(grouped_mx8_to_f32, float, false)
TANDEM_GROUPED(grouped_mx4_to_bf16, bfloat16_t, true)
TANDEM_GROUPED(grouped_mx4_to_f32, float, true)

namespace {

struct Pointers {
  const uint8_t *x, *x_scale, *w, *w_scale;
  const int32_t *ends;
  void *y;
};

#define TANDEM_START(kernel, out)                                                                 \
  TANDEM_LAUNCH(kernel, blocks, stream, gm_cast<fp8_e4m3fn_t>(p.x), gm_cast<half>(p.x_scale),     \
                gm_cast<uint8_t>(p.w), gm_cast<half>(p.w_scale), gm_cast<int32_t>(p.ends),        \
                gm_cast<out>(p.y), uint32_t(T), uint32_t(E), uint32_t(N), uint32_t(K), tile.rows, \
                tile.outputs, tile.chunk, uint32_t(blocks), uint32_t(device->l1_bytes),           \
                uint32_t(device->l0a_bytes), uint32_t(device->l0c_bytes))

int32_t start(const tandem_ascend_device *device, void *stream, const Pointers &p, int64_t T,
              int64_t E, int64_t N, int64_t K, bool fed, int32_t wide) {
  if (T < 0 || E < 1 || N < 1 || K < 1 || K % kScalesOf != 0 || (p.ends == nullptr && E != 1))
    return TANDEM_BAD_VALUE;
  if (K > 65535 || T > INT32_MAX / 2 || N > INT32_MAX / 2) return TANDEM_TOO_LARGE;
  if (T == 0) return TANDEM_OK;
  // How rows spread over experts is known on the device only: most have up to four times the
  // average.
  const int64_t used = E < T ? E : T, average = ceil_div(T, E),
                likely = 4 * average < T ? 4 * average : T;
  const Tile tile = choose_tile(*device, likely, N, used, fed);
  if (!fits(*device, tile)) return TANDEM_TOO_LARGE;
  const int64_t most = (ceil_div(T, tile.rows) + used - 1) * ceil_div(N, tile.outputs);
  const int64_t blocks = most < device->cube_cores ? most : device->cube_cores;
  if (fed)
    return wide ? TANDEM_START(grouped_mx4_to_f32, float)
                : TANDEM_START(grouped_mx4_to_bf16, bfloat16_t);
  return wide ? TANDEM_START(grouped_mx8_to_f32, float)
              : TANDEM_START(grouped_mx8_to_bf16, bfloat16_t);
}

}  // namespace

int32_t tandem_ascend_grouped_linear_mx8(const tandem_ascend_device *device, void *stream,
                                         const uint8_t *x, const uint8_t *x_scale, const uint8_t *w,
                                         const uint8_t *w_scale, const int32_t *ends, void *y,
                                         int64_t T, int64_t E, int64_t N, int64_t K, int32_t wide) {
  return start(device, stream, {x, x_scale, w, w_scale, ends, y}, T, E, N, K, false, wide);
}

int32_t tandem_ascend_grouped_linear_mx4(const tandem_ascend_device *device, void *stream,
                                         const uint8_t *x, const uint8_t *x_scale, const uint8_t *w,
                                         const uint8_t *w_scale, const int32_t *ends, void *y,
                                         int64_t T, int64_t E, int64_t N, int64_t K, int32_t wide) {
  return start(device, stream, {x, x_scale, w, w_scale, ends, y}, T, E, N, K, true, wide);
}

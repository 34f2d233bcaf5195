// sparse_attn: attention whose queries lie ready and whose outputs are stored as they are.
#include "sparse_attn.h"

#include "_attention.h"

using namespace tandem;

namespace {

class PlainEnds {
 public:
  static constexpr bool kBringsQueries = false;
  TANDEM_SHARED static constexpr uint32_t room(uint32_t) { return 0; }
  TANDEM_SHARED static constexpr uint32_t scratch(uint32_t, uint32_t) { return 0; }

  __aicore__ inline PlainEnds(Gm<bfloat16_t> out, uint32_t heads, uint32_t dim)
      : out_(out), heads_(heads), dim_(dim) {}

  __aicore__ inline void end() const {}
  __aicore__ inline void prepare(const Part &, const AscendC::LocalTensor<float> &) const {}
  __aicore__ inline void deliver(const Part &part, const AscendC::LocalTensor<bfloat16_t> &from,
                                 const AscendC::LocalTensor<float> &,
                                 const AscendC::LocalTensor<uint8_t> &) const {
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID2);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID2);
    AscendC::GlobalTensor<bfloat16_t> to;
    to.SetGlobalBuffer(out_);
    rows::store_row(to, (int64_t(part.row) * heads_ + part.first) * dim_, from, part.count * dim_);
  }

 private:
  const Gm<bfloat16_t> out_;
  const uint32_t heads_, dim_;
};

}  // namespace

__global__ __mix__(1, 2) void sparse_attn_kernel(
    Gm<bfloat16_t> q, Gm<uint8_t> window, Gm<int32_t> window_slots, Gm<uint8_t> main,
    Gm<int32_t> main_slots, Gm<float> sink, Gm<bfloat16_t> out, Gm<float> partial, uint32_t rows,
    uint32_t heads, uint32_t dim, uint32_t window_count, uint32_t main_count, int32_t window_format,
    int32_t main_format, float scale, uint32_t part, uint32_t blocks, uint32_t l0_bytes,
    uint32_t split) {
  const AttentionShape s{rows,         heads,      dim,           part,        blocks, l0_bytes,
                         window_count, main_count, window_format, main_format, scale,  split};
  attend(q, Caches{window, window_slots, main, main_slots}, sink, partial, s,
         PlainEnds(out, heads, dim));
}

__global__ __vector__ void sparse_attn_merge_kernel(Gm<float> partial, Gm<float> sink,
                                                    Gm<bfloat16_t> out, uint32_t rows,
                                                    uint32_t heads, uint32_t dim, uint32_t chunks,
                                                    uint32_t tile_heads, uint32_t tile_chunks) {
  const Partial left{partial, rows, chunks, heads, dim};
  const PlainEnds ends(out, heads, dim);
  ChunkMerger<PlainEnds>(left, {tile_heads, tile_chunks}, ends).run(sink);
}

int32_t tandem_ascend_sparse_attn(const tandem_ascend_device *device, void *stream,
                                  const uint16_t *q, const uint8_t *window,
                                  const int32_t *window_slots, const uint8_t *main,
                                  const int32_t *main_slots, const float *sink, uint16_t *out,
                                  float *partial, int64_t T, int32_t heads, int32_t dim,
                                  int32_t window_count, int32_t main_count, int32_t window_format,
                                  int32_t main_format, float scale) {
  const AttentionSizes sizes{T, heads, dim, window_count, main_count, window_format, main_format};
  const Dealt dealt = deal<PlainEnds>(*device, sizes, partial != nullptr);
  if (dealt.status != TANDEM_OK || T == 0) return dealt.status;
  const int32_t status = TANDEM_LAUNCH(
      sparse_attn_kernel, dealt.blocks, stream, gm_cast<bfloat16_t>(q), gm_cast<uint8_t>(window),
      gm_cast<int32_t>(window_slots), gm_cast<uint8_t>(main), gm_cast<int32_t>(main_slots),
      gm_cast<float>(sink), gm_cast<bfloat16_t>(out), gm_cast<float>(partial), uint32_t(T),
      uint32_t(heads), uint32_t(dim), uint32_t(window_count), uint32_t(main_count), window_format,
      main_format, scale, dealt.part, dealt.blocks, uint32_t(device->l0a_bytes),
      uint32_t(partial != nullptr));
  if (status != TANDEM_OK || partial == nullptr) return status;
  return TANDEM_LAUNCH(sparse_attn_merge_kernel, dealt.merge_blocks, stream,
                       gm_cast<float>(partial), gm_cast<float>(sink), gm_cast<bfloat16_t>(out),
                       uint32_t(T), uint32_t(heads), uint32_t(dim), uint32_t(sizes.chunks()),
                       dealt.tile.heads, dealt.tile.chunks);
}

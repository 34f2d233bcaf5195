// sparse_attn: attention whose queries lie ready and whose outputs are stored as they are.
#include "sparse_attn.h"

#include "_attention.h"

using namespace tandem;

namespace {

class PlainEnds {
 public:
  static constexpr bool kBringsQueries = false;
  static constexpr uint32_t room(uint32_t) { return 0; }
  static constexpr uint32_t scratch(uint32_t, uint32_t) { return 0; }

  __aicore__ inline PlainEnds(Gm<bfloat16_t> out, uint32_t heads, uint32_t dim)
      : out_(out), heads_(heads), dim_(dim) {}

  __aicore__ inline void begin() const {}
  __aicore__ inline void end() const {}
  __aicore__ inline void bring(const Task &, Gm<bfloat16_t>,
                               const AscendC::LocalTensor<bfloat16_t> &) const {}
  __aicore__ inline void deliver(const Task &task, const AscendC::LocalTensor<bfloat16_t> &from,
                                 const AscendC::LocalTensor<uint8_t> &) const {
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID2);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID2);
    AscendC::GlobalTensor<bfloat16_t> to;
    to.SetGlobalBuffer(out_ + (int64_t(task.row) * heads_ + task.first + task.skipped()) * dim_);
    rows::store_row(to, 0, from, task.own() * dim_);
  }

 private:
  const Gm<bfloat16_t> out_;
  const uint32_t heads_, dim_;
};

}  // namespace

__global__ __mix__(1, 2) void sparse_attn_kernel(
    Gm<bfloat16_t> q, Gm<uint8_t> window, Gm<int32_t> window_slots, Gm<uint8_t> main,
    Gm<int32_t> main_slots, Gm<float> sink, Gm<bfloat16_t> out, uint32_t rows, uint32_t heads,
    uint32_t dim, uint32_t window_count, uint32_t main_count, int32_t window_format,
    int32_t main_format, float scale, uint32_t part, uint32_t blocks, uint32_t l0_bytes) {
  const AttentionShape s{rows,         heads,      dim,           part,        blocks, l0_bytes,
                         window_count, main_count, window_format, main_format, scale};
  attend(q, Caches{window, window_slots, main, main_slots}, sink, s, PlainEnds(out, heads, dim));
}

int32_t tandem_ascend_sparse_attn(const tandem_ascend_device *device, void *stream,
                                  const uint16_t *q, const uint8_t *window,
                                  const int32_t *window_slots, const uint8_t *main,
                                  const int32_t *main_slots, const float *sink, uint16_t *out,
                                  int64_t T, int32_t heads, int32_t dim, int32_t window_count,
                                  int32_t main_count, int32_t window_format, int32_t main_format,
                                  float scale) {
  const AttentionSizes sizes{T, heads, dim, window_count, main_count, window_format, main_format};
  const Dealt dealt = deal<PlainEnds>(*device, sizes);
  if (dealt.status != TANDEM_OK || T == 0) return dealt.status;
  return TANDEM_LAUNCH(sparse_attn_kernel, dealt.blocks, stream, gm_cast<bfloat16_t>(q),
                       gm_cast<uint8_t>(window), gm_cast<int32_t>(window_slots),
                       gm_cast<uint8_t>(main), gm_cast<int32_t>(main_slots), gm_cast<float>(sink),
                       gm_cast<bfloat16_t>(out), uint32_t(T), uint32_t(heads), uint32_t(dim),
                       uint32_t(window_count), uint32_t(main_count), window_format, main_format,
                       scale, dealt.part, dealt.blocks, uint32_t(device->l0a_bytes));
}

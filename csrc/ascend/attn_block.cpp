// attn_block: attention whose queries the vector cores rotate and lay in L1, and whose outputs they
// rotate back and encode before they are stored.
#include "attn_block.h"

#include "_attention.h"
#include "_codec.h"
#include "_rotate.h"

using namespace tandem;

namespace {

using Format = codec::Mxfp8;
using rows::kStep;

// The last pairs of each of some heads, where they lie; a pair is one element of 32 bits. Cosines
// and sines have whole registers.
template <bool inverse>
__simd_vf__ inline void rotate_heads(Ub<uint32_t> tails, Ub<float> cosines, Ub<float> sines,
                                     uint32_t heads, uint32_t stride, uint32_t pairs) {
  Reg::RegTensor<uint32_t> pair;
  Reg::RegTensor<float> cosine, sine;
  const uint16_t parts = rows::rounds(pairs);
  for (uint16_t part = 0; part < parts; ++part) {
    const uint32_t some = pairs < kStep ? pairs : kStep;
    Reg::MaskReg mask = Reg::UpdateMask<float>(pairs);
    Reg::LoadAlign(cosine, cosines + part * kStep);
    Reg::LoadAlign(sine, sines + part * kStep);
    if constexpr (inverse) Reg::Neg(sine, sine, mask);
    for (uint16_t head = 0; head < uint16_t(heads); ++head) {
      const Ub<uint32_t> at = tails + (head * stride + part * kStep);
      Reg::Load(pair, at);
      rows::rotate_pairs(pair, cosine, sine, mask);
      Reg::Store(at, pair, some);
    }
  }
}

class RotatedEnds {
 public:
  static constexpr bool kBringsQueries = true;

  // Angles; and codes, scales and what encoding them needs, of all heads as one row, with a scale
  // more that may fill the row up.
  TANDEM_SHARED static constexpr uint32_t room(uint32_t dim) {
    return 2 * 4 * rows::whole_steps(dim / 2);
  }
  TANDEM_SHARED static constexpr uint32_t scratch(uint32_t heads, uint32_t dim) {
    const uint32_t width = heads * dim + Format::kGroup;
    return factors_at(width) + codec::factors_room<Format>(width, codec::kEncodeUnits<Format>);
  }

  __aicore__ inline RotatedEnds(Gm<float> cos_sin, Gm<uint8_t> codes, Gm<uint8_t> scales,
                                uint32_t heads, uint32_t dim, uint32_t turned,
                                uint32_t queries_base)
      : cos_sin_(cos_sin),
        codes_(codes),
        scales_(scales),
        heads_(heads),
        dim_(dim),
        turned_(turned),
        queries_base_(queries_base) {}

  __aicore__ inline void end() const {
    if (brought_ > 0) AscendC::CrossCoreWaitFlag<2, PIPE_MTE3>(kQueriesFree);
  }

  // The angles of a row.
  __aicore__ inline void prepare(const Part &part, const AscendC::LocalTensor<float> &own) const {
    const uint32_t pairs = turned_ / 2;
    AscendC::GlobalTensor<float> both;
    both.SetGlobalBuffer(cos_sin_ + int64_t(part.row) * turned_);
    rows::load_row(own, both, 0, pairs);
    rows::load_row(own[rows::whole_steps(pairs)], both, pairs, pairs);
  }

  __aicore__ inline void bring(const Task &task, Gm<bfloat16_t> q,
                               const AscendC::LocalTensor<bfloat16_t> &to,
                               const AscendC::LocalTensor<float> &own) {
    const Part part = task.part();
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID4);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID4);
    if (part.count > 0) {
      AscendC::GlobalTensor<bfloat16_t> heads;
      heads.SetGlobalBuffer(q);
      rows::load_row(to, heads, (int64_t(part.row) * heads_ + part.first) * dim_,
                     part.count * dim_);
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID4);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID4);
    rotate<false>(to, own, part.count);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID2);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID2);
    if (brought_++ > 0) AscendC::CrossCoreWaitFlag<2, PIPE_MTE3>(kQueriesFree);
    send_rows(to, dim_, queries_base_, task);
    AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(kQueriesReady);
  }

  __aicore__ inline void deliver(const Part &part, const AscendC::LocalTensor<bfloat16_t> &from,
                                 const AscendC::LocalTensor<float> &own,
                                 const AscendC::LocalTensor<uint8_t> &scratch) const {
    const uint32_t width = part.count * dim_, all = heads_ * dim_, before = part.first * dim_;
    // The end of a row brings what fills its scales up.
    const uint32_t more = codec::scale_bytes<Format>(all) - codec::groups<Format>(all);
    const uint32_t stored = codec::groups<Format>(width) + (before + width == all ? more : 0);
    rotate<true>(from, own, part.count);
    encode(from, scratch, width, stored);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID2);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID2);
    AscendC::GlobalTensor<uint8_t> codes, scales;
    codes.SetGlobalBuffer(codes_ + int64_t(part.row) * all + before);
    scales.SetGlobalBuffer(scales_ + int64_t(part.row) * codec::scale_bytes<Format>(all) +
                           codec::groups<Format>(before));
    rows::store_row(codes, 0, scratch, width);
    rows::store_row(scales, 0, scratch[scales_at(width)], stored);
  }

 private:
  const Gm<float> cos_sin_;
  const Gm<uint8_t> codes_, scales_;
  const uint32_t heads_, dim_, turned_, queries_base_;
  uint32_t brought_ = 0;

  TANDEM_SHARED static constexpr uint32_t scales_at(uint32_t width) {
    return codec::codes_room<Format>(width);
  }
  TANDEM_SHARED static constexpr uint32_t sizes_at(uint32_t width) {
    return scales_at(width) + codec::scales_room<Format>(width);
  }
  TANDEM_SHARED static constexpr uint32_t factors_at(uint32_t width) {
    return sizes_at(width) + codec::sizes_room<Format>(width + Format::kGroup);
  }

  template <bool inverse>
  __aicore__ inline void rotate(const AscendC::LocalTensor<bfloat16_t> &heads,
                                const AscendC::LocalTensor<float> &own, uint32_t count) const {
    const uint32_t pairs = turned_ / 2;
    const Ub<uint32_t> all = Ub<uint32_t>(heads.GetPhyAddr());
    const Ub<float> cosines(own.GetPhyAddr());
    asc_vf_call<rotate_heads<inverse>>(all + (dim_ / 2 - pairs), cosines,
                                       cosines + rows::whole_steps(pairs), count, dim_ / 2, pairs);
  }

  __aicore__ inline void encode(const AscendC::LocalTensor<bfloat16_t> &from,
                                const AscendC::LocalTensor<uint8_t> &scratch, uint32_t width,
                                uint32_t stored) const {
    const Ub<bfloat16_t> row(from.GetPhyAddr());
    const Ub<uint8_t> codes(scratch.GetPhyAddr()), scales(scratch[scales_at(width)].GetPhyAddr());
    const Ub<uint32_t> sizes = Ub<uint32_t>(scratch[sizes_at(width)].GetPhyAddr());
    const Ub<float> factors = Ub<float>(scratch[factors_at(width)].GetPhyAddr());
    asc_vf_call<codec::group_sizes<Format, bfloat16_t>>(row, sizes, width);
    asc_vf_call<codec::group_scales<Format>>(sizes, scales, factors, codec::groups<Format>(width),
                                             stored);
    asc_vf_call<codec::element_codes<Format, bfloat16_t>>(row, factors, codes, width);
  }
};

}  // namespace

__global__ __mix__(1, 2) void attn_block_kernel(
    Gm<bfloat16_t> q, Gm<float> cos_sin, Gm<uint8_t> window, Gm<int32_t> window_slots,
    Gm<uint8_t> main, Gm<int32_t> main_slots, Gm<float> sink, Gm<uint8_t> codes, Gm<uint8_t> scales,
    Gm<float> partial, uint32_t rows, uint32_t heads, uint32_t dim, uint32_t turned,
    uint32_t window_count, uint32_t main_count, int32_t window_format, int32_t main_format,
    float scale, uint32_t part, uint32_t blocks, uint32_t l0_bytes, uint32_t split) {
  const AttentionShape s{rows,         heads,      dim,           part,        blocks, l0_bytes,
                         window_count, main_count, window_format, main_format, scale,  split};
  attend(q, Caches{window, window_slots, main, main_slots}, sink, partial, s,
         RotatedEnds(cos_sin, codes, scales, heads, dim, turned,
                     AttentionCube::queries_base(dim, part)));
}

__global__ __vector__ void attn_block_merge_kernel(Gm<float> partial, Gm<float> cos_sin,
                                                   Gm<float> sink, Gm<uint8_t> codes,
                                                   Gm<uint8_t> scales, uint32_t rows,
                                                   uint32_t heads, uint32_t dim, uint32_t turned,
                                                   uint32_t chunks, uint32_t tile_heads,
                                                   uint32_t tile_chunks) {
  const Partial left{partial, rows, chunks, heads, dim};
  const RotatedEnds ends(cos_sin, codes, scales, heads, dim, turned, 0);
  ChunkMerger<RotatedEnds>(left, {tile_heads, tile_chunks}, ends).run(sink);
}

int32_t tandem_ascend_attn_block(const tandem_ascend_device *device, void *stream,
                                 const uint16_t *q, const float *cos_sin, const uint8_t *window,
                                 const int32_t *window_slots, const uint8_t *main,
                                 const int32_t *main_slots, const float *sink, uint8_t *codes,
                                 uint8_t *scales, float *partial, int64_t T, int32_t heads,
                                 int32_t dim, int32_t turned, int32_t window_count,
                                 int32_t main_count, int32_t window_format, int32_t main_format,
                                 float scale) {
  if (dim % 32 != 0 || turned < 2 || turned > dim || turned % 2 != 0) return TANDEM_BAD_VALUE;
  const AttentionSizes sizes{T, heads, dim, window_count, main_count, window_format, main_format};
  const Dealt dealt = deal<RotatedEnds>(*device, sizes, partial != nullptr);
  if (dealt.status != TANDEM_OK || T == 0) return dealt.status;
  const int32_t status = TANDEM_LAUNCH(
      attn_block_kernel, dealt.blocks, stream, gm_cast<bfloat16_t>(q), gm_cast<float>(cos_sin),
      gm_cast<uint8_t>(window), gm_cast<int32_t>(window_slots), gm_cast<uint8_t>(main),
      gm_cast<int32_t>(main_slots), gm_cast<float>(sink), gm_cast<uint8_t>(codes),
      gm_cast<uint8_t>(scales), gm_cast<float>(partial), uint32_t(T), uint32_t(heads),
      uint32_t(dim), uint32_t(turned), uint32_t(window_count), uint32_t(main_count), window_format,
      main_format, scale, dealt.part, dealt.blocks, uint32_t(device->l0a_bytes),
      uint32_t(partial != nullptr));
  if (status != TANDEM_OK || partial == nullptr) return status;
  return TANDEM_LAUNCH(attn_block_merge_kernel, dealt.merge_blocks, stream, gm_cast<float>(partial),
                       gm_cast<float>(cos_sin), gm_cast<float>(sink), gm_cast<uint8_t>(codes),
                       gm_cast<uint8_t>(scales), uint32_t(T), uint32_t(heads), uint32_t(dim),
                       uint32_t(turned), uint32_t(sizes.chunks()), dealt.tile.heads,
                       dealt.tile.chunks);
}

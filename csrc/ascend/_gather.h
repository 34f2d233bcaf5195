// Cache entries on their way to the cube: gathered by slot, decoded to bf16 on the two vector cores
// of a block, and laid down in L1 of its cube core as fractals.
//
// A chunk is kChunk entries, of which each vector core brings a half. Entries of slot -1, and those
// that fill the last chunk up, are zeros: what is multiplied by a weight of nothing has to be
// finite.
#pragma once

#include "_decode.h"
#include "_product.h"

namespace tandem {

constexpr uint32_t kChunk = 64, kHalfChunk = kChunk / 2;
// Flags between the cores, for each of two buffers of a chunk.
constexpr uint16_t kEntriesReady = 0, kEntriesFree = 2;

// Entries that a list of slots names, -1 naming none: each codes, then scales, in one of the
// formats of the codec.
struct Entries {
  Gm<uint8_t> cache;
  Gm<int32_t> slots;
  uint32_t count;
  int32_t format;
};

__aicore__ inline uint32_t chunks_of(uint32_t count) { return (count + kChunk - 1) / kChunk; }

__simd_vf__ inline void clear_words(Ub<uint32_t> to, uint32_t count) {
  namespace Reg = AscendC::Reg;
  Reg::RegTensor<uint32_t> zero;
  Reg::Duplicate(zero, uint32_t(0));
  const uint16_t steps = rows::rounds(count);
  for (uint16_t i = 0; i < steps; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<uint32_t>(count);
    Reg::StoreAlign(to + i * rows::kStep, zero, mask);
  }
}

class EntryGather {
 public:
  // Bytes of UB from `base` on.
  TANDEM_SHARED static inline uint32_t room(uint32_t dim) {
    return kHalfChunk * (code_room(dim) + scale_room(dim) + row_room(dim)) + factor_room(dim);
  }

  __aicore__ inline EntryGather(uint32_t dim, uint32_t base, uint32_t l1_base)
      : dim_(dim), base_(base), l1_base_(l1_base) {}

  __aicore__ inline void begin() {
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID0);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID0);
  }
  __aicore__ inline void end() {
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID0);
    for (uint32_t i = 0; i < 2; ++i)
      if (chunks_ > i) AscendC::CrossCoreWaitFlag<2, PIPE_MTE3>(kEntriesFree + i);
  }

  // This core's half of the chunk that starts at an entry.
  __aicore__ inline void bring(const Entries &entries, uint32_t start) {
    const uint32_t first = start + uint32_t(AscendC::GetSubBlockIdx()) * kHalfChunk;
    for (uint32_t i = 0; i < kHalfChunk; ++i)
      slots_[i] = first + i < entries.count ? entries.slots[first + i] : -1;
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID0);
    for (uint32_t i = 0; i < kHalfChunk;) {
      uint32_t many = 1;  // neighbours in the cache come together
      while (slots_[i] >= 0 && i + many < kHalfChunk &&
             slots_[i + many] == slots_[i] + int32_t(many))
        ++many;
      fetch(entries.cache, entries.format, i, many);
      i += many;
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID0);
    for (uint32_t i = 0; i < kHalfChunk; ++i) decode(entries.format, i);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(EVENT_ID0);
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID0);
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(EVENT_ID0);
    hand_over();
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(EVENT_ID0);
  }

 private:
  const uint32_t dim_, base_, l1_base_;
  uint32_t chunks_ = 0;
  int32_t slots_[kHalfChunk];

  // Room for the largest of the formats.
  TANDEM_SHARED static inline uint32_t code_room(uint32_t dim) {
    return codec::codes_room<codec::Mxfp8>(dim);
  }
  TANDEM_SHARED static inline uint32_t scale_room(uint32_t dim) {
    return codec::scales_room<codec::Nvfp4>(dim);
  }
  TANDEM_SHARED static inline uint32_t factor_room(uint32_t dim) {
    return codec::factors_room<codec::Nvfp4>(dim, codec::kDecodeUnits<codec::Mxfp8>);
  }
  TANDEM_SHARED static inline uint32_t row_room(uint32_t dim) { return 2 * rows::whole_steps(dim); }

  template <class T>
  __aicore__ inline AscendC::LocalTensor<T> buffer(uint32_t offset, uint32_t bytes) const {
    return AscendC::LocalTensor<T>(AscendC::TPosition::VECCALC, base_ + offset, bytes / sizeof(T));
  }
  __aicore__ inline AscendC::LocalTensor<uint8_t> codes(uint32_t i, uint32_t many) const {
    return buffer<uint8_t>(i * code_room(dim_), many * code_room(dim_));
  }
  __aicore__ inline AscendC::LocalTensor<uint8_t> scales(uint32_t i, uint32_t many) const {
    return buffer<uint8_t>(kHalfChunk * code_room(dim_) + i * scale_room(dim_),
                           many * scale_room(dim_));
  }
  __aicore__ inline AscendC::LocalTensor<bfloat16_t> row(uint32_t i) const {
    return buffer<bfloat16_t>(
        kHalfChunk * (code_room(dim_) + scale_room(dim_)) + i * row_room(dim_), row_room(dim_));
  }
  __aicore__ inline AscendC::LocalTensor<float> factors() const {
    return buffer<float>(kHalfChunk * (code_room(dim_) + scale_room(dim_) + row_room(dim_)),
                         factor_room(dim_));
  }

  // `many` entries from slot number i on, which follow one another in the cache.
  __aicore__ inline void fetch(Gm<uint8_t> cache, int32_t format, uint32_t i, uint32_t many) const {
    if (slots_[i] < 0) return;
    const uint32_t of_codes = format == codec::kMxfp8 ? dim_ : dim_ / 2;
    const uint32_t of_scales = dim_ / (format == codec::kNvfp4 ? 16 : 32);
    AscendC::GlobalTensor<uint8_t> entry;
    entry.SetGlobalBuffer(cache + int64_t(slots_[i]) * (of_codes + of_scales));
    load_parts(codes(i, many), code_room(dim_), entry, of_codes, of_scales, many);
    load_parts(scales(i, many), scale_room(dim_), entry[of_codes], of_scales, of_codes, many);
  }

  // Parts of so many bytes, `skipped` bytes apart, each to a room of its own.
  __aicore__ static inline void load_parts(const AscendC::LocalTensor<uint8_t> &to, uint32_t room,
                                           const AscendC::GlobalTensor<uint8_t> &from,
                                           uint32_t bytes, uint32_t skipped, uint32_t many) {
    AscendC::DataCopyExtParams parts;
    parts.blockCount = many;
    parts.blockLen = bytes;
    parts.srcStride = skipped;
    parts.dstStride = (room - align_to(bytes, kBlockBytes)) / kBlockBytes;
    parts.rsv = 0;
    AscendC::DataCopyPad(to, from, parts, AscendC::DataCopyPadExtParams<uint8_t>{false, 0, 0, 0});
  }

  __aicore__ inline void decode(int32_t format, uint32_t i) const {
    const Ub<bfloat16_t> to(row(i).GetPhyAddr());
    if (slots_[i] < 0) {
      asc_vf_call<clear_words>(Ub<uint32_t>(to), dim_ / 2);
      return;
    }
    const Ub<uint8_t> code(codes(i, 1).GetPhyAddr()), scale(scales(i, 1).GetPhyAddr());
    const Ub<float> spread(factors().GetPhyAddr());
    if (format == codec::kMxfp8)
      codec::decode_row<codec::Mxfp8>(code, scale, spread, to, dim_);
    else if (format == codec::kMxfp4)
      codec::decode_row<codec::Mxfp4>(code, scale, spread, to, dim_);
    else
      codec::decode_row<codec::Nvfp4>(code, scale, spread, to, dim_);
  }

  // Rows to L1: of each, the blocks of 16 elements to their columns.
  __aicore__ inline void hand_over() {
    const uint32_t which = chunks_ % 2, bytes = 2 * kChunk * dim_;
    if (chunks_ >= 2) AscendC::CrossCoreWaitFlag<2, PIPE_MTE3>(kEntriesFree + which);
    const uint32_t first = uint32_t(AscendC::GetSubBlockIdx()) * kHalfChunk;
    AscendC::DataCopyParams blocks;
    blocks.blockCount = dim_ / 16;
    blocks.blockLen = 1;
    blocks.srcGap = 0;
    blocks.dstGap = kChunk - 1;
    for (uint32_t i = 0; i < kHalfChunk; ++i) {
      const uint32_t offset = (first + i) * kBlockBytes;
      const AscendC::LocalTensor<bfloat16_t> to(
          AscendC::TPosition::B1, l1_base_ + which * bytes + offset, (bytes - offset) / 2);
      AscendC::DataCopy(to, row(i), blocks);
    }
    AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(kEntriesReady + which);
    ++chunks_;
  }
};

}  // namespace tandem

// Lines of mxfp4 on their way to L1: gathered to UB by a vector core, half of an operand each,
// codes filled up to whole columns and scales laid out as fractals.
#pragma once

#include "_index_keys.h"

namespace tandem {

namespace Reg = AscendC::Reg;

// Lines of global memory, so many bytes apart.
struct Lines {
  Gm<uint8_t> codes, scales;
  uint64_t code_stride, scale_stride;
};

__simd_vf__ inline void clear_lines(Ub<uint32_t> codes, Ub<uint32_t> scales, uint32_t code_words,
                                    uint32_t scale_words) {
  Reg::RegTensor<uint32_t> zero;
  Reg::Duplicate(zero, uint32_t(0));
  const uint16_t of_codes = rows::rounds(code_words), of_scales = rows::rounds(scale_words);
  for (uint16_t i = 0; i < of_codes; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<uint32_t>(code_words);
    Reg::StoreAlign(codes + i * rows::kStep, zero, mask);
  }
  for (uint16_t i = 0; i < of_scales; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<uint32_t>(scale_words);
    Reg::StoreAlign(scales + i * rows::kStep, zero, mask);
  }
}

// Pairs of scales, a block to a line, to fractals of sixteen lines and one pair: [bands, columns,
// 16]. Of 16 lines a register has the pairs of even number, another one those of odd number.
__simd_vf__ inline void arrange_scales(Ub<uint16_t> from, Ub<uint16_t> to, uint32_t bands,
                                       uint32_t columns) {
  constexpr uint32_t kLineWords = kBlockBytes / 2, kLanes = 8 * kLineWords;
  Reg::RegTensor<uint16_t> low, high, even, odd, pairs, place, last;
  uint32_t sixteen = kFractalRows;
  Reg::MaskReg all = Reg::CreateMask<uint16_t>(), some = Reg::UpdateMask<uint16_t>(sixteen);
  Reg::Duplicate(last, uint16_t(kLanes - 1));
  for (uint16_t band = 0; band < uint16_t(bands); ++band) {
    Reg::LoadAlign(low, from + band * 2 * kLanes);
    Reg::LoadAlign(high, from + (band * 2 + 1) * kLanes);
    Reg::DeInterleave(even, odd, low, high);
    Reg::Arange(rows::as<int16_t>(place), int16_t(0));
    Reg::ShiftLefts(place, place, int16_t(3), all);
    Reg::And(place, place, last, all);
    for (uint16_t column = 0; column < uint16_t(columns); column += 2) {
      const Ub<uint16_t> target = to + (band * columns + column) * kFractalRows;
      Reg::Gather(pairs, even, place);
      Reg::StoreAlign(target, pairs, some);
      if (column + 1u < columns) {
        Reg::Gather(pairs, odd, place);
        Reg::StoreAlign(target + kFractalRows, pairs, some);
      }
      Reg::Adds(place, place, uint16_t(1), all);
    }
  }
}

class LineFeed {
 public:
  __aicore__ inline LineFeed(const LineShape &shape, uint32_t base) : shape_(shape), base_(base) {}

  __aicore__ inline void begin() const {
    for (int32_t i = 0; i < 2; ++i) give_back(i);
  }
  __aicore__ inline void end() const {
    for (int32_t i = 0; i < 2; ++i) take(i);
    for (uint32_t i = 0; i < 2; ++i)
      if (chunks_ > i) AscendC::CrossCoreWaitFlag<2, PIPE_MTE3>(kKeysFree + i);
    if (operands_ > 0) AscendC::CrossCoreWaitFlag<2, PIPE_MTE3>(kQueriesFree);
  }

  // This core's half of `count` keys from number `start` on. An entry of the cache is its codes,
  // and then its scales.
  template <class Keys>
  __aicore__ inline void bring_keys(Gm<uint8_t> cache, const Keys &keys, uint32_t start,
                                    uint32_t count) {
    const Half half = half_of(count);
    const uint64_t entry = shape_.code_bytes() + shape_.scale_bytes();
    next_buffer();
    for (uint32_t i = 0; i < half.count;) {
      const Run run = keys.run(start + half.first + i, half.count - i);
      if (run.slot < 0) {
        clear(i, run.count);
      } else {
        const Gm<uint8_t> line = cache + uint64_t(run.slot) * entry;
        fetch({line, line + shape_.code_bytes(), entry, entry}, i, run.count);
      }
      i += run.count;
    }
    arrange(half);
    const uint32_t which = chunks_ % 2;
    if (chunks_++ >= 2) AscendC::CrossCoreWaitFlag<2, PIPE_MTE3>(kKeysFree + which);
    hand_over(L1Plan{shape_}.keys(which), half);
    AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(kKeysReady + which);
  }

  // This core's half of `count` queries.
  __aicore__ inline void bring_queries(const Lines &lines, uint32_t count) {
    const Half half = half_of(count);
    next_buffer();
    if (half.count > 0)
      fetch({lines.codes + half.first * lines.code_stride,
             lines.scales + half.first * lines.scale_stride, lines.code_stride, lines.scale_stride},
            0, half.count);
    arrange(half);
    if (operands_++ > 0) AscendC::CrossCoreWaitFlag<2, PIPE_MTE3>(kQueriesFree);
    hand_over(L1Plan{shape_}.queries(), half);
    AscendC::CrossCoreSetFlag<2, PIPE_MTE3>(kQueriesReady);
  }

 private:
  const LineShape shape_;
  const uint32_t base_;
  uint32_t brought_ = 0, chunks_ = 0, operands_ = 0;

  // Lines of an operand that this core brings: `lines` in all, zeros after `count`.
  struct Half {
    uint32_t first, lines, count;
  };
  __aicore__ static inline Half half_of(uint32_t count) {
    const uint32_t lines = half_lines(count), first = uint32_t(AscendC::GetSubBlockIdx()) * lines;
    const uint32_t left = count < first ? 0 : count - first;
    return {first, lines, left < lines ? left : lines};
  }

  __aicore__ inline uint32_t buffer() const { return brought_ % 2; }
  __aicore__ inline AscendC::LocalTensor<uint8_t> room(uint32_t offset, uint32_t bytes) const {
    return AscendC::LocalTensor<uint8_t>(AscendC::TPosition::VECCALC,
                                         base_ + buffer() * UbLayout::lines_room(shape_) + offset,
                                         bytes);
  }
  __aicore__ inline AscendC::LocalTensor<uint8_t> codes() const {
    return room(0, shape_.codes_room(kHalfKeys));
  }
  __aicore__ inline AscendC::LocalTensor<uint8_t> scales() const {
    return room(shape_.codes_room(kHalfKeys), kHalfKeys * kBlockBytes);
  }
  __aicore__ inline AscendC::LocalTensor<uint8_t> fractals() const {
    return room(shape_.codes_room(kHalfKeys) + kHalfKeys * kBlockBytes,
                shape_.scales_room(kHalfKeys));
  }

  __aicore__ static inline void give_back(int32_t buffer) {
    AscendC::SetFlag<AscendC::HardEvent::MTE3_MTE2>(buffer);
    AscendC::SetFlag<AscendC::HardEvent::MTE3_V>(buffer);
  }
  __aicore__ static inline void take(int32_t buffer) {
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_MTE2>(buffer);
    AscendC::WaitFlag<AscendC::HardEvent::MTE3_V>(buffer);
  }
  __aicore__ inline void next_buffer() {
    ++brought_;
    take(buffer());
  }

  __aicore__ inline void fetch(const Lines &lines, uint32_t first, uint32_t count) const {
    fetch_parts(codes()[first * shape_.columns() * kBlockBytes], lines.codes, lines.code_stride,
                shape_.code_bytes(), kBlockBytes, count);
    fetch_parts(scales()[first * kBlockBytes], lines.scales, lines.scale_stride,
                shape_.scale_bytes(), 2, count);
  }
  // A part of each line, filled up with zeros to a multiple of `unit` bytes.
  __aicore__ static inline void fetch_parts(const AscendC::LocalTensor<uint8_t> &to,
                                            Gm<uint8_t> from, uint64_t stride, uint32_t bytes,
                                            uint32_t unit, uint32_t count) {
    AscendC::GlobalTensor<uint8_t> source;
    source.SetGlobalBuffer(from);
    AscendC::DataCopyExtParams parts;
    parts.blockCount = uint16_t(count);
    parts.blockLen = bytes;
    parts.srcStride = int64_t(stride) - bytes;
    parts.dstStride = 0;
    parts.rsv = 0;
    AscendC::DataCopyPad(
        to, source, parts,
        AscendC::DataCopyPadExtParams<uint8_t>{true, 0, uint8_t(align_to(bytes, unit) - bytes), 0});
  }

  __aicore__ inline void clear(uint32_t first, uint32_t count) const {
    const uint32_t line = shape_.columns() * kBlockBytes;
    asc_vf_call<clear_lines>(Ub<uint32_t>(codes()[first * line].GetPhyAddr()),
                             Ub<uint32_t>(scales()[first * kBlockBytes].GetPhyAddr()),
                             count * line / 4, count * kBlockBytes / 4);
  }
  // What follows the lines, and their scales.
  __aicore__ inline void arrange(const Half &half) const {
    if (half.count < half.lines) clear(half.count, half.lines - half.count);
    AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(buffer());
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(buffer());
    asc_vf_call<arrange_scales>(Ub<uint16_t>(scales().GetPhyAddr()),
                                Ub<uint16_t>(fractals().GetPhyAddr()), half.lines / kFractalRows,
                                shape_.columns());
    AscendC::SetFlag<AscendC::HardEvent::V_MTE3>(buffer());
    AscendC::WaitFlag<AscendC::HardEvent::V_MTE3>(buffer());
  }

  // Columns of both halves lie one after another, scales behind them.
  __aicore__ inline void hand_over(uint32_t base, const Half &half) const {
    const uint32_t lines = 2 * half.lines, columns = shape_.columns();
    AscendC::DataCopyParams blocks;
    blocks.blockCount = uint16_t(half.lines);
    blocks.blockLen = 1;
    blocks.srcGap = uint16_t(columns - 1);
    blocks.dstGap = 0;
    for (uint32_t column = 0; column < columns; ++column)
      AscendC::DataCopy(
          l1(base + (column * lines + half.first) * kBlockBytes, half.lines * kBlockBytes),
          codes()[column * kBlockBytes], blocks);
    blocks.blockCount = 1;
    blocks.blockLen = uint16_t(half.lines / kFractalRows * columns);
    blocks.srcGap = 0;
    AscendC::DataCopy(l1(base + shape_.codes_room(lines) + shape_.scales_room(half.first),
                         shape_.scales_room(half.lines)),
                      fractals(), blocks);
    give_back(buffer());
  }
  __aicore__ static inline AscendC::LocalTensor<uint8_t> l1(uint32_t offset, uint32_t bytes) {
    return AscendC::LocalTensor<uint8_t>(AscendC::TPosition::A1, offset, bytes);
  }
};

}  // namespace tandem

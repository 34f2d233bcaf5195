// What a block needs to decode rows: queues for codes and scale bytes on their way from global
// memory, and the buffer of the codec.
#pragma once

#include "_decode.h"

namespace codec {

// Bytes of its buffers in UB.
template <class Format>
struct DecoderRoom {
  uint32_t codes, scales, factors;

  TANDEM_SHARED explicit DecoderRoom(uint32_t width)
      : codes(codes_room<Format>(width)),
        scales(scales_room<Format>(width)),
        factors(factors_room<Format>(width, kDecodeUnits<Format>)) {}

  int64_t total() const { return int64_t(2) * (codes + scales) + factors; }
};

// Bytes of a row of bf16 that is decoded: fp4 fills two registers at a time.
TANDEM_SHARED constexpr uint32_t decoded_room(uint32_t width) {
  return 2 * 2 * rows::whole_steps(width);
}

// Of the decoder, and of two rows that it fills in turn.
inline int64_t decoder_bytes(uint32_t width, int32_t format) {
  const int64_t decoded = int64_t(2) * decoded_room(width);
  if (format == kMxfp8) return DecoderRoom<Mxfp8>(width).total() + decoded;
  return decoded +
         (format == kMxfp4 ? DecoderRoom<Mxfp4>(width).total() : DecoderRoom<Nvfp4>(width).total());
}

template <class Format>
class Decoder {
 public:
  __aicore__ inline void init(TPipe &pipe, uint32_t width) {
    const DecoderRoom<Format> room(width);
    width_ = width;
    pipe.InitBuffer(codes_, 2, room.codes);
    pipe.InitBuffer(scales_, 2, room.scales);
    pipe.InitBuffer(factors_, room.factors);
  }

  // A row whose codes and scale bytes begin there, to bf16 in UB.
  __aicore__ inline void decode(const GlobalTensor<uint8_t> &code_from, int64_t code_at,
                                const GlobalTensor<uint8_t> &scale_from, int64_t scale_at,
                                Ub<bfloat16_t> row) {
    LocalTensor<uint8_t> codes = codes_.template AllocTensor<uint8_t>(),
                         scales = scales_.template AllocTensor<uint8_t>();
    rows::load_row(codes, code_from, code_at, code_bytes<Format>(width_));
    rows::load_row(scales, scale_from, scale_at, groups<Format>(width_));
    codes_.EnQue(codes);
    scales_.EnQue(scales);
    codes = codes_.template DeQue<uint8_t>();
    scales = scales_.template DeQue<uint8_t>();
    decode_row<Format>(Ub<uint8_t>(codes.GetPhyAddr()), Ub<uint8_t>(scales.GetPhyAddr()),
                       Ub<float>(factors_.Get<float>().GetPhyAddr()), row, width_);
    codes_.FreeTensor(codes);
    scales_.FreeTensor(scales);
  }

 private:
  TQue<TPosition::VECIN, 1> codes_, scales_;
  TBuf<TPosition::VECCALC> factors_;
  uint32_t width_;
};

}  // namespace codec

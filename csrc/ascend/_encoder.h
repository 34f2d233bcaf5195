// What a block needs to encode rows: the buffers of the codec, and queues for codes and scale bytes
// on their way to global memory.
#pragma once

#include "_codec.h"

namespace codec {

// Bytes of its buffers in UB.
template <class Format>
struct EncoderRoom {
  uint32_t codes, scales, sizes, factors;

  TANDEM_SHARED explicit EncoderRoom(uint32_t width)
      : codes(codes_room<Format>(width)),
        scales(scales_room<Format>(width)),
        sizes(sizes_room<Format>(width)),
        factors(factors_room<Format>(width, kEncodeUnits<Format>)) {}

  int64_t total() const { return int64_t(2) * (codes + scales) + sizes + factors; }
};

inline int64_t encoder_bytes(uint32_t width, int32_t format) {
  if (format == kMxfp8) return EncoderRoom<Mxfp8>(width).total();
  return format == kMxfp4 ? EncoderRoom<Mxfp4>(width).total() : EncoderRoom<Nvfp4>(width).total();
}

template <class Format>
class Encoder {
 public:
  __aicore__ inline void init(TPipe &pipe, uint32_t width) {
    const EncoderRoom<Format> room(width);
    width_ = width;
    pipe.InitBuffer(codes_, 2, room.codes);
    pipe.InitBuffer(scales_, 2, room.scales);
    pipe.InitBuffer(sizes_, room.sizes);
    pipe.InitBuffer(factors_, room.factors);
  }

  // Of a row of f32 or bf16 in UB.
  template <class T>
  __aicore__ inline void encode(Ub<T> row) {
    LocalTensor<uint8_t> codes = codes_.template AllocTensor<uint8_t>(),
                         scales = scales_.template AllocTensor<uint8_t>();
    encode_row<Format, T>(row, Ub<uint8_t>(codes.GetPhyAddr()), Ub<uint8_t>(scales.GetPhyAddr()),
                          Ub<uint32_t>(sizes_.Get<uint32_t>().GetPhyAddr()),
                          Ub<float>(factors_.Get<float>().GetPhyAddr()), width_);
    codes_.EnQue(codes);
    scales_.EnQue(scales);
  }

  // The oldest encoded row, its codes and so many of its scale bytes, to where each begins.
  __aicore__ inline void store(const GlobalTensor<uint8_t> &code_to, int64_t code_at,
                               const GlobalTensor<uint8_t> &scale_to, int64_t scale_at,
                               uint32_t scale_count) {
    LocalTensor<uint8_t> codes = codes_.template DeQue<uint8_t>(),
                         scales = scales_.template DeQue<uint8_t>();
    rows::store_row(code_to, code_at, codes, code_bytes<Format>(width_));
    rows::store_row(scale_to, scale_at, scales, scale_count);
    codes_.FreeTensor(codes);
    scales_.FreeTensor(scales);
  }

  // As row `row` of dense codes and of dense scale bytes, filled up as they are stored.
  __aicore__ inline void store_row(const GlobalTensor<uint8_t> &code_to,
                                   const GlobalTensor<uint8_t> &scale_to, int64_t row) {
    const uint32_t stored = scale_bytes<Format>(width_);
    store(code_to, row * code_bytes<Format>(width_), scale_to, row * stored, stored);
  }

  // As an entry of a cache: codes, then scale bytes.
  __aicore__ inline void store_entry(const GlobalTensor<uint8_t> &cache, int32_t slot) {
    const uint32_t bytes = code_bytes<Format>(width_), count = groups<Format>(width_);
    const int64_t entry = int64_t(slot) * (bytes + count);
    store(cache, entry, cache, entry + bytes, count);
  }

 private:
  TQue<TPosition::VECOUT, 1> codes_, scales_;
  TBuf<TPosition::VECCALC> sizes_, factors_;
  uint32_t width_;
};

}  // namespace codec

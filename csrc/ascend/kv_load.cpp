// kv_load: a block takes slots one after another and decodes the entry of each in UB.
#include "kv_load.h"

#include "_decoder.h"

namespace {

using namespace AscendC;

__simd_vf__ inline void fill_with_zeros(Ub<float> words, uint32_t count) {
  Reg::RegTensor<float> zero;
  Reg::Duplicate(zero, 0.0f);
  const uint16_t steps = rows::rounds(count);
  for (uint16_t i = 0; i < steps; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(count);
    Reg::StoreAlign(words + i * rows::kStep, zero, mask);
  }
}

template <class Format>
__aicore__ inline void load_entries(Gm<uint8_t> cache, Gm<int32_t> slots, Gm<bfloat16_t> x,
                                    int64_t count, uint32_t dim) {
  TPipe pipe;
  TQue<TPosition::VECOUT, 1> out;
  codec::Decoder<Format> decoder;
  decoder.init(pipe, dim);
  pipe.InitBuffer(out, 2, codec::decoded_room(dim));
  rows::keep_infinity_and_nan();
  const uint32_t code_bytes = codec::code_bytes<Format>(dim), groups = codec::groups<Format>(dim);
  GlobalTensor<uint8_t> from;
  GlobalTensor<bfloat16_t> to;
  from.SetGlobalBuffer(cache);
  to.SetGlobalBuffer(x, count * dim);
  const rows::Share share = rows::share_of(count);
  for (int64_t row = share.first; row < share.end; ++row) {
    const int32_t slot = slots[row];
    LocalTensor<bfloat16_t> value = out.AllocTensor<bfloat16_t>();
    const int64_t entry = int64_t(slot) * (code_bytes + groups);
    if (slot < 0)
      asc_vf_call<fill_with_zeros>(Ub<float>(value.GetPhyAddr()), dim / 2);
    else
      decoder.decode(from, entry, from, entry + code_bytes, Ub<bfloat16_t>(value.GetPhyAddr()));
    out.EnQue(value);
    value = out.DeQue<bfloat16_t>();
    rows::store_row(to, row * dim, value, dim);
    out.FreeTensor(value);
  }
}

__global__ __vector__ void kv_load_kernel(Gm<uint8_t> cache, Gm<int32_t> slots, Gm<bfloat16_t> x,
                                          int64_t count, uint32_t dim, int32_t format) {
  if (format == codec::kMxfp8)
    load_entries<codec::Mxfp8>(cache, slots, x, count, dim);
  else if (format == codec::kMxfp4)
    load_entries<codec::Mxfp4>(cache, slots, x, count, dim);
  else
    load_entries<codec::Nvfp4>(cache, slots, x, count, dim);
}

}  // namespace

int32_t tandem_ascend_kv_load(const tandem_ascend_device *device, void *stream,
                              const uint8_t *cache, const int32_t *slots, uint16_t *x, int64_t rows,
                              int32_t dim, int32_t format) {
  if (rows < 0 || !codec::whole_groups(dim, format)) return TANDEM_BAD_VALUE;
  if (!::rows::fits(device, codec::decoder_bytes(uint32_t(dim), format))) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(kv_load_kernel, ::rows::row_blocks(device, rows), stream,
                       gm_cast<uint8_t>(cache), gm_cast<int32_t>(slots), gm_cast<bfloat16_t>(x),
                       rows, uint32_t(dim), format);
}

// kv_store: a block takes rows one after another, encodes each in UB and writes an entry.
#include "kv_store.h"

#include "_encoder.h"

namespace {

using namespace AscendC;

template <class Format>
__aicore__ inline void store_entries(Gm<bfloat16_t> x, Gm<uint8_t> cache, Gm<int32_t> slots,
                                     int64_t count, uint32_t dim) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> in;
  codec::Encoder<Format> encoder;
  pipe.InitBuffer(in, 2, 2 * rows::whole_steps(dim));
  encoder.init(pipe, dim);
  rows::keep_infinity_and_nan();
  GlobalTensor<bfloat16_t> from;
  GlobalTensor<uint8_t> to;
  from.SetGlobalBuffer(x, count * dim);
  to.SetGlobalBuffer(cache);
  const rows::Share share = rows::share_of(count);
  for (int64_t row = share.first; row < share.end; ++row) {
    const int32_t slot = slots[row];
    if (slot < 0) continue;
    LocalTensor<bfloat16_t> value = in.AllocTensor<bfloat16_t>();
    rows::load_row(value, from, row * dim, dim);
    in.EnQue(value);
    value = in.DeQue<bfloat16_t>();
    encoder.encode(Ub<bfloat16_t>(value.GetPhyAddr()));
    in.FreeTensor(value);
    encoder.store_entry(to, slot);
  }
}

__global__ __vector__ void kv_store_kernel(Gm<bfloat16_t> x, Gm<uint8_t> cache, Gm<int32_t> slots,
                                           int64_t count, uint32_t dim, int32_t format) {
  if (format == codec::kMxfp8)
    store_entries<codec::Mxfp8>(x, cache, slots, count, dim);
  else if (format == codec::kMxfp4)
    store_entries<codec::Mxfp4>(x, cache, slots, count, dim);
  else
    store_entries<codec::Nvfp4>(x, cache, slots, count, dim);
}

}  // namespace

int32_t tandem_ascend_kv_store(const tandem_ascend_device *device, void *stream, const uint16_t *x,
                               uint8_t *cache, const int32_t *slots, int64_t rows, int32_t dim,
                               int32_t format) {
  if (rows < 0 || !codec::whole_groups(dim, format)) return TANDEM_BAD_VALUE;
  const int64_t bytes =
      int64_t(4) * ::rows::whole_steps(uint32_t(dim)) + codec::encoder_bytes(uint32_t(dim), format);
  if (!::rows::fits(device, bytes)) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(kv_store_kernel, ::rows::row_blocks(device, rows), stream,
                       gm_cast<bfloat16_t>(x), gm_cast<uint8_t>(cache), gm_cast<int32_t>(slots),
                       rows, uint32_t(dim), format);
}

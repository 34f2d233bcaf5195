// kv_store: a block takes rows one after another, encodes each in UB and writes an entry.
#include "kv_store.h"

#include "_codec.h"

namespace {

using namespace AscendC;

template <class Format>
struct Sizes {
  uint32_t x, codes, scales, sizes, factors;

  TANDEM_SHARED explicit Sizes(uint32_t dim)
      : x(2 * rows::whole_steps(dim)),
        codes(codec::codes_room<Format>(dim)),
        scales(codec::scales_room<Format>(dim)),
        sizes(codec::sizes_room<Format>(dim)),
        factors(codec::factors_room<Format>(dim, codec::kEncodeUnits<Format>)) {}

  int64_t total() const { return int64_t(2) * (x + codes + scales) + sizes + factors; }
};

template <class Format>
__aicore__ inline void store_entries(Gm<bfloat16_t> x, Gm<uint8_t> cache, Gm<int32_t> slots,
                                     int64_t count, uint32_t dim) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> in;
  TQue<TPosition::VECOUT, 1> code_out, scale_out;
  TBuf<TPosition::VECCALC> size_buffer, factor_buffer;
  const Sizes<Format> sizes(dim);
  pipe.InitBuffer(in, 2, sizes.x);
  pipe.InitBuffer(code_out, 2, sizes.codes);
  pipe.InitBuffer(scale_out, 2, sizes.scales);
  pipe.InitBuffer(size_buffer, sizes.sizes);
  pipe.InitBuffer(factor_buffer, sizes.factors);
  rows::keep_infinity_and_nan();
  const uint32_t code_bytes = codec::code_bytes<Format>(dim), groups = codec::groups<Format>(dim);
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
    LocalTensor<uint8_t> code = code_out.AllocTensor<uint8_t>(),
                         scale = scale_out.AllocTensor<uint8_t>();
    codec::encode_row<Format, bfloat16_t>(
        Ub<bfloat16_t>(value.GetPhyAddr()), Ub<uint8_t>(code.GetPhyAddr()),
        Ub<uint8_t>(scale.GetPhyAddr()), Ub<uint32_t>(size_buffer.Get<uint32_t>().GetPhyAddr()),
        Ub<float>(factor_buffer.Get<float>().GetPhyAddr()), dim);
    in.FreeTensor(value);
    code_out.EnQue(code);
    scale_out.EnQue(scale);
    code = code_out.DeQue<uint8_t>();
    scale = scale_out.DeQue<uint8_t>();
    const int64_t entry = int64_t(slot) * (code_bytes + groups);
    rows::store_row(to, entry, code, code_bytes);
    rows::store_row(to, entry + code_bytes, scale, groups);
    code_out.FreeTensor(code);
    scale_out.FreeTensor(scale);
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

int64_t bytes_needed(uint32_t dim, int32_t format) {
  if (format == codec::kMxfp8) return Sizes<codec::Mxfp8>(dim).total();
  return format == codec::kMxfp4 ? Sizes<codec::Mxfp4>(dim).total()
                                 : Sizes<codec::Nvfp4>(dim).total();
}

}  // namespace

int32_t tandem_ascend_kv_store(const tandem_ascend_device *device, void *stream, const uint16_t *x,
                               uint8_t *cache, const int32_t *slots, int64_t rows, int32_t dim,
                               int32_t format) {
  if (rows < 0 || !codec::whole_groups(dim, format)) return TANDEM_BAD_VALUE;
  if (!::rows::fits(device, bytes_needed(uint32_t(dim), format))) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(kv_store_kernel, ::rows::row_blocks(device, rows), stream,
                       gm_cast<bfloat16_t>(x), gm_cast<uint8_t>(cache), gm_cast<int32_t>(slots),
                       rows, uint32_t(dim), format);
}

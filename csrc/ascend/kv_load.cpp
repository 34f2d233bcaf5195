// kv_load: a block takes slots one after another and decodes the entry of each in UB.
#include "kv_load.h"

#include "_decode.h"

namespace {

using namespace AscendC;

template <class Format>
struct Sizes {
  uint32_t x, codes, scales, factors;

  TANDEM_SHARED explicit Sizes(uint32_t dim)
      : x(2 * 2 * rows::whole_steps(dim)),
        codes(codec::codes_room<Format>(dim)),
        scales(codec::scales_room<Format>(dim)),
        factors(codec::factors_room<Format>(dim, codec::kDecodeUnits<Format>)) {}

  int64_t total() const { return int64_t(2) * (x + codes + scales) + factors; }
};

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
class KvLoad {
 public:
  __aicore__ inline void run(Gm<uint8_t> cache, Gm<int32_t> slots, Gm<bfloat16_t> x, int64_t count,
                             uint32_t dim) {
    const Sizes<Format> sizes(dim);
    pipe_.InitBuffer(code_in_, 2, sizes.codes);
    pipe_.InitBuffer(scale_in_, 2, sizes.scales);
    pipe_.InitBuffer(out_, 2, sizes.x);
    pipe_.InitBuffer(factors_, sizes.factors);
    rows::keep_infinity_and_nan();
    from_.SetGlobalBuffer(cache);
    GlobalTensor<bfloat16_t> to;
    to.SetGlobalBuffer(x, count * dim);
    const rows::Share share = rows::share_of(count);
    for (int64_t row = share.first; row < share.end; ++row) {
      const int32_t slot = slots[row];
      LocalTensor<bfloat16_t> value = out_.AllocTensor<bfloat16_t>();
      if (slot < 0)
        asc_vf_call<fill_with_zeros>(Ub<float>(value.GetPhyAddr()), dim / 2);
      else
        load(slot, Ub<bfloat16_t>(value.GetPhyAddr()), dim);
      out_.EnQue(value);
      value = out_.DeQue<bfloat16_t>();
      rows::store_row(to, row * dim, value, dim);
      out_.FreeTensor(value);
    }
  }

 private:
  TPipe pipe_;
  TQue<TPosition::VECIN, 1> code_in_, scale_in_;
  TQue<TPosition::VECOUT, 1> out_;
  TBuf<TPosition::VECCALC> factors_;
  GlobalTensor<uint8_t> from_;

  __aicore__ inline void load(int32_t slot, Ub<bfloat16_t> value, uint32_t dim) {
    const uint32_t code_bytes = codec::code_bytes<Format>(dim), groups = codec::groups<Format>(dim);
    const int64_t entry = int64_t(slot) * (code_bytes + groups);
    LocalTensor<uint8_t> code = code_in_.AllocTensor<uint8_t>(),
                         scale = scale_in_.AllocTensor<uint8_t>();
    rows::load_row(code, from_, entry, code_bytes);
    rows::load_row(scale, from_, entry + code_bytes, groups);
    code_in_.EnQue(code);
    scale_in_.EnQue(scale);
    code = code_in_.DeQue<uint8_t>();
    scale = scale_in_.DeQue<uint8_t>();
    codec::decode_row<Format>(Ub<uint8_t>(code.GetPhyAddr()), Ub<uint8_t>(scale.GetPhyAddr()),
                              Ub<float>(factors_.Get<float>().GetPhyAddr()), value, dim);
    code_in_.FreeTensor(code);
    scale_in_.FreeTensor(scale);
  }
};

__global__ __vector__ void kv_load_kernel(Gm<uint8_t> cache, Gm<int32_t> slots, Gm<bfloat16_t> x,
                                          int64_t count, uint32_t dim, int32_t format) {
  if (format == codec::kMxfp8)
    KvLoad<codec::Mxfp8>().run(cache, slots, x, count, dim);
  else if (format == codec::kMxfp4)
    KvLoad<codec::Mxfp4>().run(cache, slots, x, count, dim);
  else
    KvLoad<codec::Nvfp4>().run(cache, slots, x, count, dim);
}

int64_t bytes_needed(uint32_t dim, int32_t format) {
  if (format == codec::kMxfp8) return Sizes<codec::Mxfp8>(dim).total();
  return format == codec::kMxfp4 ? Sizes<codec::Mxfp4>(dim).total()
                                 : Sizes<codec::Nvfp4>(dim).total();
}

}  // namespace

int32_t tandem_ascend_kv_load(const tandem_ascend_device *device, void *stream,
                              const uint8_t *cache, const int32_t *slots, uint16_t *x, int64_t rows,
                              int32_t dim, int32_t format) {
  if (rows < 0 || !codec::whole_groups(dim, format)) return TANDEM_BAD_VALUE;
  if (!::rows::fits(device, bytes_needed(uint32_t(dim), format))) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(kv_load_kernel, ::rows::row_blocks(device, rows), stream,
                       gm_cast<uint8_t>(cache), gm_cast<int32_t>(slots), gm_cast<bfloat16_t>(x),
                       rows, uint32_t(dim), format);
}

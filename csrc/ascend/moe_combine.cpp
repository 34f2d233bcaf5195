// moe_combine: a task is a piece of a token's row. Its terms come to UB beside one another, are
// added in f32 in their order, and leave as bf16.
#include "moe_combine.h"

#include "_move.h"
#include "_rows.h"

using namespace AscendC;

namespace {

constexpr int32_t kMostTerms = 64;  // of a token
constexpr uint32_t kIds = kWindowBytes / sizeof(int32_t);

// Sums of `count` columns of terms that lie `stride` apart. A sum starts from +0, as if terms that
// are not there had been added too.
__simd_vf__ inline void add_terms(Ub<bfloat16_t> terms, Ub<bfloat16_t> out, uint32_t number,
                                  uint32_t stride, uint32_t count) {
  const uint16_t steps = rows::rounds(count);
  for (uint16_t i = 0; i < steps; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(count);
    Reg::RegTensor<float> total, term;
    Reg::Duplicate(total, 0.0f);
    for (uint32_t j = 0; j < number; ++j) {
      rows::load(term, terms + (j * stride + i * rows::kStep), mask);
      Reg::Add(total, total, term, mask);
    }
    rows::store(out + i * rows::kStep, total, mask);
  }
}

class Combine {
 public:
  __aicore__ inline Combine(Gm<bfloat16_t> y, Gm<int32_t> source, Gm<bfloat16_t> shared,
                            Gm<bfloat16_t> out, const Pieces &pieces, int32_t k)
      : pieces_(pieces), k_(k), columns_(uint32_t(pieces.piece) / 2), has_shared_(bool(shared)) {
    y_.SetGlobalBuffer(y);
    source_.SetGlobalBuffer(source);
    shared_.SetGlobalBuffer(shared);
    out_.SetGlobalBuffer(out);
    pipe_.InitBuffer(ids_, kWindowBytes);
    pipe_.InitBuffer(terms_, 2, pieces.piece * (k + 1));
    pipe_.InitBuffer(sums_, 2, pieces.piece);
  }

  __aicore__ inline void run() {
    const int64_t first = pieces_.begin(GetBlockIdx(), GetBlockNum());
    const int64_t end = pieces_.begin(GetBlockIdx() + 1, GetBlockNum());
    for (int64_t task = first; task < end; ++task) {
      const int64_t token = pieces_.row(task);
      if (task == first || token >= held_end_) hold_ids(token, pieces_.row(end - 1) + 1);
      sum(token, pieces_.first(task) / 2, pieces_.size(task));
    }
  }

 private:
  const Pieces pieces_;
  const int32_t k_;
  const uint32_t columns_;  // of a piece
  const bool has_shared_;
  GlobalTensor<bfloat16_t> y_, shared_, out_;
  GlobalTensor<int32_t> source_;
  TPipe pipe_;
  TBuf<TPosition::VECCALC> ids_;
  TQue<TPosition::VECIN, 1> terms_;
  TQue<TPosition::VECOUT, 1> sums_;
  int64_t held_ = 0, held_end_ = 0;  // tokens whose ids lie in UB

  // Bring the ids of a token and of those after it, up to `end`.
  __aicore__ inline void hold_ids(int64_t token, int64_t end) {
    const int64_t most = kIds / k_;
    held_ = token;
    held_end_ = end - token < most ? end : token + most;
    SetFlag<HardEvent::S_MTE2>(EVENT_ID0);
    WaitFlag<HardEvent::S_MTE2>(EVENT_ID0);
    rows::load_row(ids_.Get<int32_t>(), source_, token * k_, uint32_t((held_end_ - held_) * k_));
    SetFlag<HardEvent::MTE2_S>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_S>(EVENT_ID0);
  }

  __aicore__ inline void sum(int64_t token, int64_t column, uint32_t bytes) {
    const int64_t width = pieces_.bytes / 2, own = token * width + column;
    const uint32_t count = bytes / 2;
    const LocalTensor<int32_t> ids = ids_.Get<int32_t>();
    LocalTensor<bfloat16_t> terms = terms_.AllocTensor<bfloat16_t>();
    uint32_t number = 0;
    for (int32_t i = 0; i < k_; ++i) {
      const int64_t place = ids.GetValue(uint32_t((token - held_) * k_ + i));
      if (place >= 0) rows::load_row(terms[number++ * columns_], y_, place * width + column, count);
    }
    if (has_shared_) rows::load_row(terms[number++ * columns_], shared_, own, count);
    terms_.EnQue(terms);
    terms = terms_.DeQue<bfloat16_t>();
    LocalTensor<bfloat16_t> sums = sums_.AllocTensor<bfloat16_t>();
    asc_vf_call<add_terms>(terms.GetPhyAddr(), sums.GetPhyAddr(), number, columns_, count);
    terms_.FreeTensor(terms);
    sums_.EnQue(sums);
    sums = sums_.DeQue<bfloat16_t>();
    rows::store_row(out_, own, sums, count);
    sums_.FreeTensor(sums);
  }
};

__global__ __vector__ void combine_kernel(Gm<bfloat16_t> y, Gm<int32_t> source,
                                          Gm<bfloat16_t> shared, Gm<bfloat16_t> out, Pieces pieces,
                                          int32_t k) {
  rows::keep_infinity_and_nan();
  Combine(y, source, shared, out, pieces, k).run();
}

}  // namespace

int32_t tandem_ascend_moe_combine(const tandem_ascend_device *device, void *stream,
                                  const uint16_t *y, const int32_t *source, const uint16_t *shared,
                                  uint16_t *out, int64_t rows, int32_t width, int32_t k,
                                  int64_t piece) {
  const Pieces pieces{rows, 2 * int64_t(width), piece};
  if (k <= 0 || k > kMostTerms || piece % (2 * rows::kStep) != 0) return TANDEM_BAD_VALUE;
  if (int32_t status = check_pieces(device, pieces, 2 * (k + 2), kWindowBytes + rows::kSystemUb))
    return status;
  if (rows == 0) return TANDEM_OK;
  return TANDEM_LAUNCH(combine_kernel, piece_blocks(device, pieces), stream, gm_cast<bfloat16_t>(y),
                       gm_cast<int32_t>(source), gm_cast<bfloat16_t>(shared),
                       gm_cast<bfloat16_t>(out), pieces, k);
}

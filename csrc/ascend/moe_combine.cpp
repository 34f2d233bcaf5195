// moe_combine: a task is a part of a token's columns. Its terms come to UB beside one another, are
// added in f32 in their order, and leave as bf16.
#include "moe_combine.h"

#include "kernel.h"

using namespace AscendC;

namespace {

constexpr uint32_t kLanes = 64;       // f32 numbers of a register
constexpr int32_t kMostTerms = 64;    // of a token
constexpr uint32_t kIds = 2048;       // of rows that UB holds at a time
constexpr int32_t kFewColumns = 512;  // 1 KB of a row: parts of rows are not cut any shorter

struct CombineShape {
  int32_t rows, width, k;
  int32_t columns;  // of a task, a multiple of kLanes
  int32_t parts;    // of a row
};

constexpr Reg::CastTrait kWiden = {Reg::RegLayout::ZERO, Reg::SatMode::UNKNOWN,
                                   Reg::MaskMergeMode::ZEROING, RoundMode::UNKNOWN};
constexpr Reg::CastTrait kNarrow = {Reg::RegLayout::ZERO, Reg::SatMode::NO_SAT,
                                    Reg::MaskMergeMode::ZEROING, RoundMode::CAST_RINT};

// Sums of `count` columns of terms that lie `stride` apart. A sum starts from +0, as if terms that
// are not there had been added too.
__simd_vf__ inline void add_terms(Ub<bfloat16_t> terms, Ub<bfloat16_t> out, uint32_t number,
                                  uint32_t stride, uint32_t count) {
  const uint32_t registers = (count + kLanes - 1) / kLanes;
  for (uint32_t i = 0; i < registers; ++i) {
    Reg::MaskReg mask = Reg::UpdateMask<float>(count);
    Reg::RegTensor<float> total, wide;
    Reg::RegTensor<bfloat16_t> narrow;
    Reg::Duplicate(total, 0.0f);
    for (uint32_t term = 0; term < number; ++term) {
      Reg::LoadAlign<bfloat16_t, Reg::LoadDist::DIST_UNPACK_B16>(
          narrow, terms + (term * stride + i * kLanes));
      Reg::Cast<float, bfloat16_t, kWiden>(wide, narrow, mask);
      Reg::Add(total, total, wide, mask);
    }
    Reg::Cast<bfloat16_t, float, kNarrow>(narrow, total, mask);
    Reg::StoreAlign<bfloat16_t, Reg::StoreDist::DIST_PACK_B32>(out + i * kLanes, narrow, mask);
  }
}

class Combine {
 public:
  __aicore__ inline Combine(Gm<bfloat16_t> y, Gm<int32_t> source, Gm<bfloat16_t> shared,
                            Gm<bfloat16_t> out, const CombineShape &shape)
      : shape_(shape), shared_row_(bool(shared)) {
    y_.SetGlobalBuffer(y);
    source_.SetGlobalBuffer(source);
    shared_.SetGlobalBuffer(shared);
    out_.SetGlobalBuffer(out);
    pipe_.InitBuffer(ids_, kIds * sizeof(int32_t));
    const uint32_t row = shape.columns * sizeof(bfloat16_t);
    pipe_.InitBuffer(in_, 2, row * (shape.k + 1));
    pipe_.InitBuffer(sums_, 2, row);
  }

  __aicore__ inline void run() {
    const int64_t tasks = int64_t(shape_.rows) * shape_.parts;
    const int64_t first = tasks * GetBlockIdx() / GetBlockNum();
    const int64_t last = tasks * (GetBlockIdx() + 1) / GetBlockNum();
    for (int64_t task = first; task < last; ++task) {
      const int32_t token = int32_t(task / shape_.parts);
      if (task == first || token >= held_end_)
        hold_ids(token, int32_t((last - 1) / shape_.parts) + 1);
      sum(token, int32_t(task % shape_.parts) * shape_.columns);
    }
  }

 private:
  const CombineShape shape_;
  const bool shared_row_;
  GlobalTensor<bfloat16_t> y_, shared_, out_;
  GlobalTensor<int32_t> source_;
  TPipe pipe_;
  TBuf<TPosition::VECCALC> ids_;
  TQue<TPosition::VECIN, 1> in_;
  TQue<TPosition::VECOUT, 1> sums_;
  int32_t held_ = 0, held_end_ = 0;  // tokens whose ids lie in UB

  // Bring the ids of a token and of those after it, up to `end`.
  __aicore__ inline void hold_ids(int32_t token, int32_t end) {
    const int32_t most = int32_t(kIds) / shape_.k, left = end - token;
    held_ = token;
    held_end_ = token + (left < most ? left : most);
    SetFlag<HardEvent::S_MTE2>(EVENT_ID0);
    WaitFlag<HardEvent::S_MTE2>(EVENT_ID0);
    const uint32_t bytes = (held_end_ - held_) * shape_.k * sizeof(int32_t);
    DataCopyPad(ids_.Get<int32_t>(), source_[int64_t(token) * shape_.k], {1, bytes, 0, 0, 0},
                DataCopyPadExtParams<int32_t>{});
    SetFlag<HardEvent::MTE2_S>(EVENT_ID0);
    WaitFlag<HardEvent::MTE2_S>(EVENT_ID0);
  }

  __aicore__ inline void sum(int32_t token, int32_t column) {
    const int32_t left = shape_.width - column;
    const uint32_t count = left < shape_.columns ? left : shape_.columns;
    const DataCopyExtParams row{1, uint32_t(count * sizeof(bfloat16_t)), 0, 0, 0};
    const DataCopyPadExtParams<bfloat16_t> plain{};
    const LocalTensor<int32_t> ids = ids_.Get<int32_t>();
    LocalTensor<bfloat16_t> terms = in_.AllocTensor<bfloat16_t>();
    uint32_t number = 0;
    for (int32_t i = 0; i < shape_.k; ++i) {
      const int32_t place = ids.GetValue((token - held_) * shape_.k + i);
      if (place < 0) continue;
      DataCopyPad(terms[number++ * shape_.columns], y_[int64_t(place) * shape_.width + column], row,
                  plain);
    }
    const int64_t own = int64_t(token) * shape_.width + column;
    if (shared_row_) DataCopyPad(terms[number++ * shape_.columns], shared_[own], row, plain);
    in_.EnQue(terms);
    terms = in_.DeQue<bfloat16_t>();
    LocalTensor<bfloat16_t> sums = sums_.AllocTensor<bfloat16_t>();
    asc_vf_call<add_terms>(terms.GetPhyAddr(), sums.GetPhyAddr(), number, uint32_t(shape_.columns),
                           count);
    in_.FreeTensor(terms);
    sums_.EnQue(sums);
    sums = sums_.DeQue<bfloat16_t>();
    DataCopyPad(out_[own], sums, row);
    sums_.FreeTensor(sums);
  }
};

__global__ __vector__ void combine_kernel(Gm<bfloat16_t> y, Gm<int32_t> source,
                                          Gm<bfloat16_t> shared, Gm<bfloat16_t> out,
                                          CombineShape shape) {
  SetCtrlSpr<60, 60>(0);  // infinity and NaN stay
  Combine(y, source, shared, out, shape).run();
}

// Columns of a task: what UB holds of all terms and the sum, twice; fewer where cores would idle.
int32_t columns_of_task(const tandem_ascend_device *device, int64_t rows, int32_t width,
                        int32_t k) {
  const int64_t room = device->ub_bytes - int64_t(kIds * sizeof(int32_t));
  const int64_t most = room / (4 * (k + 2)) / kLanes * kLanes;
  int64_t columns = (width + kLanes - 1) / kLanes * kLanes;
  if (columns > most) columns = most;
  while (columns >= 2 * kFewColumns &&
         rows * ((width + columns - 1) / columns) < device->vector_cores)
    columns = (columns / 2 + kLanes - 1) / kLanes * kLanes;
  return int32_t(columns);
}

}  // namespace

int32_t tandem_ascend_moe_combine(const tandem_ascend_device *device, void *stream,
                                  const uint16_t *y, const int32_t *source, const uint16_t *shared,
                                  uint16_t *out, int64_t rows, int32_t width, int32_t k) {
  if (rows < 0 || width <= 0 || k <= 0 || k > kMostTerms) return TANDEM_BAD_VALUE;
  if (rows > INT32_MAX) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  const int32_t columns = columns_of_task(device, rows, width, k);
  const int32_t parts = (width + columns - 1) / columns;
  const int64_t tasks = rows * parts;
  const int64_t blocks = tasks < device->vector_cores ? tasks : device->vector_cores;
  return TANDEM_LAUNCH(combine_kernel, blocks, stream, gm_cast<bfloat16_t>(y),
                       gm_cast<int32_t>(source), gm_cast<bfloat16_t>(shared),
                       gm_cast<bfloat16_t>(out),
                       (CombineShape{int32_t(rows), width, k, columns, parts}));
}

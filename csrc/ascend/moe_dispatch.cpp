// moe_dispatch: a stable counting sort of pairs (token, k), whose rows then move by DMA.
//
// A block takes tokens that lie next to one another. The place of a pair is the number of pairs of
// lower experts, plus those of its own expert before it: every block counts all pairs by itself, as
// ids are few beside rows, so that no block waits for another. Places are integers, so they do not
// depend on how tokens are dealt to blocks.
#include "moe_dispatch.h"

#include "_block.h"
#include "kernel.h"

using namespace AscendC;

namespace {

constexpr int32_t kThreads = 1024;
constexpr int32_t kScratch = 32;        // int32 elements of UB for sums of a block
constexpr int32_t kMostExperts = 4096;  // that are held here
constexpr int32_t kMostChosen = 64;     // of a token
constexpr int32_t kPairs = 4096;        // that get their places at a time
constexpr int32_t kRowBytes = 16384;    // of a row that move at a time
constexpr int32_t kRowBuffers = 4;

// Of UB: two numbers of each expert and pair, sums of a block, and the rows on their way.
constexpr uint32_t kUbBytes = 8 * (kMostExperts + kPairs) + 4 * kScratch + kRowBuffers * kRowBytes;

// The local expert of a pair, `count` of one that is not sent. Both ids may be anything.
__simt_callee__ inline int32_t owner_of(Gm<int32_t> experts, Gm<int32_t> row_slot, int32_t pair,
                                        int32_t k, int32_t first, int32_t count) {
  const uint32_t expert = uint32_t(int32_t(experts[pair])) - uint32_t(first);
  const int32_t slot = row_slot[pair / k];
  return slot >= 0 && expert < uint32_t(count) ? int32_t(expert) : count;
}

// The place where each expert's pairs from `begin` on start; the block that is told to writes ends.
__simt_vf__ __launch_bounds__(kThreads) inline void count_pairs(
    Gm<int32_t> experts, Gm<int32_t> row_slot, Gm<int32_t> ends, Ub<int32_t> next,
    Ub<int32_t> whole, Ub<int32_t> scratch, int32_t pairs, int32_t begin, int32_t k, int32_t first,
    int32_t count, int32_t writes) {
  const int32_t thread = int32_t(threadIdx.x);
  for (int32_t expert = thread; expert < count; expert += kThreads) {
    next[expert] = 0;
    whole[expert] = 0;
  }
  asc_syncthreads();
  for (int32_t pair = thread; pair < pairs; pair += kThreads) {
    const int32_t owner = owner_of(experts, row_slot, pair, k, first, count);
    if (owner == count) continue;
    asc_atomic_add(&whole[owner], 1);
    if (pair < begin) asc_atomic_add(&next[owner], 1);
  }
  asc_syncthreads();
  int32_t lower = 0;
  for (int32_t start = 0; start < count; start += kThreads) {
    const int32_t expert = start + thread;
    const int32_t own = expert < count ? int32_t(whole[expert]) : 0;
    const int32_t before = lower + block_sum_before(own, scratch);
    if (expert < count) {
      next[expert] += before;
      if (writes != 0) ends[expert] = before + own;
    }
    lower += block_sum(own, scratch);
  }
}

// Places of `pairs` pairs from `begin` on; `next` moves on behind them. A thread takes an expert
// and goes through all pairs in their order.
__simt_vf__ __launch_bounds__(kThreads) inline void place_pairs(
    Gm<int32_t> experts, Gm<int32_t> row_slot, Gm<uint32_t> weights, Gm<uint32_t> to_weights,
    Gm<int32_t> source, Ub<int32_t> next, Ub<int32_t> owners, Ub<int32_t> places, int32_t begin,
    int32_t pairs, int32_t k, int32_t first, int32_t count) {
  const int32_t thread = int32_t(threadIdx.x);
  for (int32_t pair = thread; pair < pairs; pair += kThreads) {
    owners[pair] = owner_of(experts, row_slot, begin + pair, k, first, count);
    places[pair] = -1;
  }
  asc_syncthreads();
  for (int32_t expert = thread; expert < count; expert += kThreads) {
    int32_t place = next[expert];
    for (int32_t pair = 0; pair < pairs; ++pair)
      if (owners[pair] == expert) places[pair] = place++;
    next[expert] = place;
  }
  asc_syncthreads();
  for (int32_t pair = thread; pair < pairs; pair += kThreads) {
    const int32_t place = places[pair];
    source[begin + pair] = place;
    if (place >= 0) to_weights[place] = uint32_t(weights[begin + pair]);
  }
}

class Rows {
 public:
  __aicore__ inline Rows(TPipe &pipe, const LocalTensor<int32_t> &places) : places_(places) {
    pipe.InitBuffer(parts_, kRowBuffers, kRowBytes);
  }

  // Bring a row of so many bytes to each of its k places, which stand from `pair` on.
  __aicore__ inline void move(Gm<uint8_t> from, Gm<uint8_t> to, int64_t row, int32_t bytes,
                              int32_t pair, int32_t k) {
    GlobalTensor<uint8_t> source, target;
    source.SetGlobalBuffer(from);
    target.SetGlobalBuffer(to);
    for (int32_t start = 0; start < bytes; start += kRowBytes) {
      const uint32_t left = bytes - start, length = left < kRowBytes ? left : kRowBytes;
      const DataCopyExtParams whole{1, length, 0, 0, 0};
      LocalTensor<uint8_t> part = parts_.AllocTensor<uint8_t>();
      DataCopyPad(part, source[row * bytes + start], whole, DataCopyPadExtParams<uint8_t>{});
      parts_.EnQue(part);
      part = parts_.DeQue<uint8_t>();
      for (int32_t i = 0; i < k; ++i) {
        const int64_t place = places_.GetValue(pair + i);
        if (place >= 0) DataCopyPad(target[place * bytes + start], part, whole);
      }
      parts_.FreeTensor(part);
    }
  }

  __aicore__ inline bool sent(int32_t pair, int32_t k) const {
    for (int32_t i = 0; i < k; ++i)
      if (places_.GetValue(pair + i) >= 0) return true;
    return false;
  }

 private:
  LocalTensor<int32_t> places_;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> parts_;
};

__global__ __vector__ void dispatch_kernel(Gm<uint8_t> codes, Gm<uint8_t> scale,
                                           Gm<int32_t> experts, Gm<uint32_t> weights,
                                           Gm<int32_t> row_slot, Gm<uint8_t> to_codes,
                                           Gm<uint8_t> to_scale, Gm<uint32_t> to_weights,
                                           Gm<int32_t> ends, Gm<int32_t> source, int32_t rows,
                                           int32_t width, int32_t groups, int32_t k, int32_t first,
                                           int32_t count) {
  TPipe pipe;
  TBuf<TPosition::VECCALC> next, whole, scratch, owners, places;
  pipe.InitBuffer(next, kMostExperts * sizeof(int32_t));
  pipe.InitBuffer(whole, kMostExperts * sizeof(int32_t));
  pipe.InitBuffer(scratch, kScratch * sizeof(int32_t));
  pipe.InitBuffer(owners, kPairs * sizeof(int32_t));
  pipe.InitBuffer(places, kPairs * sizeof(int32_t));
  Rows moved(pipe, places.Get<int32_t>());

  const int32_t token = int32_t(int64_t(rows) * GetBlockIdx() / GetBlockNum());
  const int32_t end = int32_t(int64_t(rows) * (GetBlockIdx() + 1) / GetBlockNum());
  asc_vf_call<count_pairs>(dim3(kThreads), experts, row_slot, ends,
                           next.Get<int32_t>().GetPhyAddr(), whole.Get<int32_t>().GetPhyAddr(),
                           scratch.Get<int32_t>().GetPhyAddr(), rows * k, token * k, k, first,
                           count, int32_t(GetBlockIdx() == 0));
  const int32_t most = kPairs / k;
  for (int32_t start = token; start < end; start += most) {
    const int32_t tokens = end - start < most ? end - start : most;
    asc_vf_call<place_pairs>(dim3(kThreads), experts, row_slot, weights, to_weights, source,
                             next.Get<int32_t>().GetPhyAddr(), owners.Get<int32_t>().GetPhyAddr(),
                             places.Get<int32_t>().GetPhyAddr(), start * k, tokens * k, k, first,
                             count);
    SetFlag<HardEvent::V_S>(EVENT_ID0);
    WaitFlag<HardEvent::V_S>(EVENT_ID0);
    for (int32_t i = 0; i < tokens; ++i) {
      if (!moved.sent(i * k, k)) continue;
      moved.move(codes, to_codes, start + i, width, i * k, k);
      moved.move(scale, to_scale, start + i, groups, i * k, k);
    }
    SetFlag<HardEvent::S_V>(EVENT_ID0);
    WaitFlag<HardEvent::S_V>(EVENT_ID0);
  }
}

}  // namespace

int32_t tandem_ascend_moe_dispatch(const tandem_ascend_device *device, void *stream,
                                   const uint8_t *codes, const uint8_t *scale,
                                   const int32_t *experts, const float *weights,
                                   const int32_t *row_slot, uint8_t *to_codes, uint8_t *to_scale,
                                   float *to_weights, int32_t *ends, int32_t *source, int64_t rows,
                                   int32_t width, int32_t groups, int32_t k, int32_t first,
                                   int32_t count) {
  if (rows < 0 || width <= 0 || groups <= 0 || k <= 0 || k > kMostChosen) return TANDEM_BAD_VALUE;
  if (count < 0 || count > kMostExperts) return TANDEM_BAD_VALUE;
  if (rows * k > INT32_MAX - kThreads) return TANDEM_TOO_LARGE;
  // Without rows one block still writes the ends.
  int64_t blocks = rows < device->vector_cores ? rows : device->vector_cores;
  if (blocks == 0) blocks = 1;
  return TANDEM_LAUNCH_UB(dispatch_kernel, blocks, kUbBytes, stream, gm_cast<uint8_t>(codes),
                          gm_cast<uint8_t>(scale), gm_cast<int32_t>(experts),
                          gm_cast<uint32_t>(weights), gm_cast<int32_t>(row_slot),
                          gm_cast<uint8_t>(to_codes), gm_cast<uint8_t>(to_scale),
                          gm_cast<uint32_t>(to_weights), gm_cast<int32_t>(ends),
                          gm_cast<int32_t>(source), int32_t(rows), width, groups, k, first, count);
}

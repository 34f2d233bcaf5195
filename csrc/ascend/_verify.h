// Judging drafts by rejection: masses of target and proposal by chunk, and what they come to.
//
// What is missing of a row's masses to 2^42 is known only after they are summed, so the sums are
// made without it and corrected at the two tokens it belongs to, the favourites of target and
// proposal.
#pragma once

#include "_distribution.h"

// The draft that a row judges, -1 for none.
__simt_callee__ inline int32_t draft_of(Gm<int32_t> draft_row, Gm<int32_t> drafts, int32_t row) {
  const int32_t judged = draft_row[row];
  return judged < 0 ? -1 : int32_t(drafts[judged]);
}

// The largest weight of a proposal and the lowest id of it, as a key for a maximum.
__simt_callee__ inline int64_t offer_key(int32_t weight, int32_t id) {
  return int64_t(weight) << 32 | uint32_t(kNowhere - id);
}
__simt_callee__ inline int32_t offer_weight(int64_t key) { return int32_t(key >> 32); }
__simt_callee__ inline int32_t offer_id(int64_t key) { return kNowhere - int32_t(uint32_t(key)); }

// Of a chunk of the proposal that a row judges: the sum of its weights, and the largest.
__simt_vf__ __launch_bounds__(kThreads) inline void sum_offers(
    int32_t vocab, int32_t chunk, int32_t splits, int32_t rows, Gm<int32_t> forced,
    Gm<int32_t> drafts, Gm<int32_t> proposal, Gm<int32_t> draft_row, Gm<int64_t> offers,
    Ub<int64_t> scratch) {
  for (int32_t item = int32_t(blockIdx.x); item < rows * splits; item += int32_t(gridDim.x)) {
    const int32_t row = item / splits, part = item % splits, end = min(part * chunk + chunk, vocab);
    if (forced[row] >= 0 || draft_of(draft_row, drafts, row) < 0) continue;  // all threads
    Gm<int32_t> from = proposal + int64_t(draft_row[row]) * vocab;
    int64_t sum = 0, best = 0;
    for (int32_t token = part * chunk + int32_t(threadIdx.x); token < end; token += kThreads) {
      const int32_t weight = from[token];
      sum += weight;
      best = llmax(best, offer_key(weight, token));
    }
    sum = block_sum(sum, scratch);
    best = block_max(best, int64_t(0), scratch);
    if (threadIdx.x == 0) {
      offers[item] = sum;
      offers[rows * splits + item] = best;
    }
  }
}

// Of a chunk of a row that judges: sums of target masses, of proposal masses, and of what the
// target has more; and the target's masses of the draft and of the proposal's favourite.
__simt_vf__ __launch_bounds__(kThreads) inline void judge_chunks(
    Gm<float> logits, int64_t stride, int32_t vocab, int32_t chunk, int32_t splits, int32_t rows,
    Gm<int32_t> forced, Gm<int32_t> drafts, Gm<int32_t> proposal, Gm<int32_t> draft_row,
    Gm<int32_t> places, Gm<float> numbers, Gm<int64_t> kept, Gm<int64_t> offers, Gm<int64_t> sums,
    Gm<int64_t> special, Ub<int64_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x);
  for (int32_t item = int32_t(blockIdx.x); item < rows * splits; item += int32_t(gridDim.x)) {
    const int32_t row = item / splits, part = item % splits, end = min(part * chunk + chunk, vocab);
    const int32_t draft = draft_of(draft_row, drafts, row);
    Gm<int32_t> place = places + row * kPlaces;
    if (forced[row] >= 0 || draft < 0 || !place[kValid]) continue;  // all threads
    const bool mine = thread < splits;
    const int32_t other = rows * splits + row * splits + thread;
    const int64_t total = row_weight(kept, row, splits, scratch);
    const int64_t offered = row_weight(offers, row, splits, scratch);
    const int64_t best = block_max(mine ? int64_t(offers[other]) : int64_t(0), int64_t(0), scratch);
    const int32_t favourite = offer_id(best);
    const uint64_t by_total = reciprocal(total), by_offered = reciprocal(offered);
    const float peak = numbers[row * kNumbers + kPeak];
    const float inverse = numbers[row * kNumbers + kInverse];
    const int32_t bound = place[kBound], last = place[kLast], least = place[kLeast];
    Gm<float> from = logits + row * stride;
    Gm<int32_t> offer = proposal + int64_t(draft_row[row]) * vocab;
    int64_t q_sum = 0, p_sum = 0, left_sum = 0;
    for (int32_t token = part * chunk + thread; token < end; token += kThreads) {
      const int32_t weight = kept_weight(from[token], token, peak, inverse, bound, last, least);
      const int64_t q = mass(weight, total, by_total), p = mass(offer[token], offered, by_offered);
      q_sum += q;
      p_sum += p;
      left_sum += llmax(q - p, 0);
      if (token == draft) special[row * 2] = q;
      if (token == favourite) special[row * 2 + 1] = q;
    }
    q_sum = block_sum(q_sum, scratch);
    p_sum = block_sum(p_sum, scratch);
    left_sum = block_sum(left_sum, scratch);
    if (thread == 0) {
      sums[item] = q_sum;
      sums[rows * splits + item] = p_sum;
      sums[2 * rows * splits + item] = left_sum;
    }
  }
}

// What judging a row came to, in scratch: where `judge` leaves it for the others.
constexpr int32_t kVerdict = 32;
enum Verdict : int32_t {
  kTaken = kVerdict,  // whether the draft is taken; if not:
  kEmpty,             // whether nothing of the target is left, so that its own masses count
  kMoreOfTarget,      // what the mass of the target's favourite has on top
  kMoreOfOffer,       // the same of the proposal's
  kOffered,           // sum of the proposal's weights
  kTheirs,            // the proposal's favourite
};

// Judge the draft of a row with a 53-bit number. Returns the thread's part of the line to draw
// from, a chunk a thread, and leaves the rest in scratch.
__simt_callee__ inline int64_t judge(Gm<int64_t> offers, Gm<int64_t> sums, Gm<int64_t> special,
                                     Gm<int32_t> offer, int32_t row, int32_t rows, int32_t splits,
                                     int32_t chunk, int32_t draft, int32_t mine, int64_t total,
                                     uint64_t number, Ub<int64_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x), all = rows * splits, item = row * splits + thread;
  const bool inside = thread < splits;
  const int64_t offered = row_weight(offers, row, splits, scratch);
  const int64_t best =
      block_max(inside ? int64_t(offers[all + item]) : int64_t(0), int64_t(0), scratch);
  const int32_t theirs = offer_id(best);
  const uint64_t by_total = reciprocal(total), by_offered = reciprocal(offered);
  int64_t q = inside ? int64_t(sums[item]) : 0;
  const int64_t p = inside ? int64_t(sums[all + item]) : 0;
  int64_t left = inside ? int64_t(sums[2 * all + item]) : 0;
  const int64_t q_more = kWhole - block_sum(q, scratch);
  const int64_t p_all = block_sum(p, scratch);
  const int64_t p_more = offered > 0 ? kWhole - p_all : 0;
  const int64_t q_mine = mass(kHeaviest, total, by_total);
  const int64_t p_mine = mass(offer[mine], offered, by_offered);
  if (thread == mine / chunk) {
    const int64_t over = q_mine + q_more - p_mine - (mine == theirs ? p_more : 0);
    left += llmax(over, 0) - llmax(q_mine - p_mine, 0);
    q += q_more;
  }
  if (thread == theirs / chunk && mine != theirs) {
    const int64_t lead =
        int64_t(special[row * 2 + 1]) - mass(offer_weight(best), offered, by_offered);
    left += llmax(lead - p_more, 0) - llmax(lead, 0);
  }
  const bool empty = block_sum(left, scratch) == 0;
  if (thread == 0) {
    const int64_t q_draft = int64_t(special[row * 2]) + (draft == mine ? q_more : 0);
    const int64_t p_draft =
        mass(offer[draft], offered, by_offered) + (draft == theirs ? p_more : 0);
    scratch[kTaken] = scaled_uniform(number, p_draft) < q_draft ? 1 : 0;
    scratch[kEmpty] = empty ? 1 : 0;
    scratch[kMoreOfTarget] = q_more;
    scratch[kMoreOfOffer] = p_more;
    scratch[kOffered] = offered;
    scratch[kTheirs] = theirs;
  }
  asc_syncthreads();
  return empty ? q : left;
}

// spec_verify: masses of target and proposal are summed by chunk, then a block judges and draws a
// row.
#include "spec_verify.h"

#include "_verify.h"

// A token's part of the line that is drawn from: its weight where nothing is judged, else what the
// target's mass has more than the proposal's, or all of it where nothing is left.
__simt_callee__ inline int64_t part_of_token(int32_t weight, int32_t offer, int32_t token,
                                             bool judged, int64_t total, uint64_t by_total,
                                             uint64_t by_offered, int32_t mine,
                                             Ub<int64_t> scratch) {
  if (!judged) return weight;
  const int64_t q =
      mass(weight, total, by_total) + (token == mine ? int64_t(scratch[kMoreOfTarget]) : 0);
  if (scratch[kEmpty]) return q;
  const int64_t p = mass(offer, scratch[kOffered], by_offered) +
                    (token == scratch[kTheirs] ? int64_t(scratch[kMoreOfOffer]) : 0);
  return llmax(q - p, 0);
}

__simt_vf__ __launch_bounds__(kThreads) inline void verify_rows(
    Gm<float> logits, int64_t stride, int32_t vocab, int32_t chunk, int32_t splits, int32_t rows,
    Gm<int64_t> seed, Gm<int64_t> position, Gm<int32_t> forced, Gm<int32_t> drafts,
    Gm<int32_t> proposal, Gm<int32_t> draft_row, Gm<int32_t> places, Gm<float> numbers,
    Gm<int64_t> kept, Gm<int64_t> offers, Gm<int64_t> sums, Gm<int64_t> special,
    Gm<int32_t> token_out, Gm<int32_t> accepted_out, Gm<float> raw_out, Gm<float> logprob_out,
    int32_t coupled, Ub<int64_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x);
  for (int32_t row = int32_t(blockIdx.x); row < rows; row += int32_t(gridDim.x)) {
    Gm<int32_t> place = places + row * kPlaces;
    Gm<float> number = numbers + row * kNumbers, from = logits + row * stride;
    if (!place[kValid]) {  // the same for all threads
      if (thread == 0) {
        token_out[row] = -1;
        accepted_out[row] = 0;
        raw_out[row] = kNan;
        logprob_out[row] = kNan;
      }
      continue;
    }
    const int32_t draft = draft_of(draft_row, drafts, row), must = forced[row];
    const bool judged = !coupled && draft >= 0;
    const float peak = number[kPeak], inverse = number[kInverse];
    const int32_t bound = place[kBound], last = place[kLast], least = place[kLeast];
    const int32_t mine = place[kFavourite];
    int32_t token = must >= 0 ? must : -1;
    if (must < 0) {  // the same for all threads
      const int64_t total = row_weight(kept, row, splits, scratch);
      const int64_t own = seed[row], at = position[row];
      Gm<int32_t> offer = proposal + int64_t(judged ? int32_t(draft_row[row]) : 0) * vocab;
      int64_t sum = thread < splits ? int64_t(kept[int64_t(row) * splits + thread]) : 0;
      if (judged)
        sum = judge(offers, sums, special, offer, row, rows, splits, chunk, draft, mine, total,
                    uniform53(own, at, 2), scratch);
      if (judged && scratch[kTaken]) {
        token = draft;
      } else {
        const int64_t whole = block_sum(sum, scratch);
        const int64_t target = scaled_uniform(uniform53(own, at, judged ? 1 : 0), whole);
        find_part(sum, 0, target, scratch);
        const int32_t begin = int32_t(int64_t(scratch[kFound])) * chunk;
        const int64_t line = scratch[kFound + 1];
        asc_syncthreads();
        const uint64_t by_total = reciprocal(total);
        const uint64_t by_offered = judged ? reciprocal(scratch[kOffered]) : 0;
        const int32_t first = part_begin(begin, chunk), end = part_end(begin, chunk, vocab);
        int64_t part = 0;
        for (int32_t other = first; other < end; ++other)
          part += part_of_token(kept_weight(from[other], other, peak, inverse, bound, last, least),
                                judged ? int32_t(offer[other]) : 0, other, judged, total, by_total,
                                by_offered, mine, scratch);
        find_part(part, line, target, scratch);
        if (thread == int32_t(int64_t(scratch[kFound]))) {
          int64_t before = scratch[kFound + 1];
          int32_t other = first;
          while (true) {
            before +=
                part_of_token(kept_weight(from[other], other, peak, inverse, bound, last, least),
                              judged ? int32_t(offer[other]) : 0, other, judged, total, by_total,
                              by_offered, mine, scratch);
            if (before > target) break;
            ++other;
          }
          token = other;
        }
      }
    }
    // One thread knows the token; where it was not looked for, all do, and the first is enough.
    const bool looked = must < 0 && !(judged && scratch[kTaken]);
    if (token < 0 || (!looked && thread != 0)) continue;
    const float x = from[token], scaled = scaled_logit(x, peak, inverse);
    const int32_t weight = integer_weight(exp_negative(scaled));
    const bool left = is_kept(image(x), token, weight, bound, last, least);
    token_out[row] = token;
    accepted_out[row] = draft >= 0 && token == draft ? 1 : 0;
    raw_out[row] = (x - peak) - float(number[kLogAll]);
    logprob_out[row] = left ? scaled - float(number[kLogKept]) : -kInfinity;
  }
}

__global__ __vector__ void offers_kernel(int32_t vocab, int32_t chunk, int32_t splits, int32_t rows,
                                         Gm<int32_t> forced, Gm<int32_t> drafts,
                                         Gm<int32_t> proposal, Gm<int32_t> draft_row,
                                         Gm<int64_t> offers) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> scratch;
  pipe.InitBuffer(scratch, kDrawUb);
  asc_vf_call<sum_offers>(dim3(kThreads), vocab, chunk, splits, rows, forced, drafts, proposal,
                          draft_row, offers, scratch.Get<int64_t>().GetPhyAddr());
}

__global__ __vector__ void judge_kernel(Gm<float> logits, int64_t stride, int32_t vocab,
                                        int32_t chunk, int32_t splits, int32_t rows,
                                        Gm<int32_t> forced, Gm<int32_t> drafts,
                                        Gm<int32_t> proposal, Gm<int32_t> draft_row,
                                        Gm<int32_t> places, Gm<float> numbers, Gm<int64_t> kept,
                                        Gm<int64_t> offers, Gm<int64_t> sums, Gm<int64_t> special) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> scratch;
  pipe.InitBuffer(scratch, kDrawUb);
  asc_vf_call<judge_chunks>(dim3(kThreads), logits, stride, vocab, chunk, splits, rows, forced,
                            drafts, proposal, draft_row, places, numbers, kept, offers, sums,
                            special, scratch.Get<int64_t>().GetPhyAddr());
}

__global__ __vector__ void verify_kernel(
    Gm<float> logits, int64_t stride, int32_t vocab, int32_t chunk, int32_t splits, int32_t rows,
    Gm<int64_t> seed, Gm<int64_t> position, Gm<int32_t> forced, Gm<int32_t> drafts,
    Gm<int32_t> proposal, Gm<int32_t> draft_row, Gm<int32_t> places, Gm<float> numbers,
    Gm<int64_t> kept, Gm<int64_t> offers, Gm<int64_t> sums, Gm<int64_t> special, Gm<int32_t> token,
    Gm<int32_t> accepted, Gm<float> raw, Gm<float> logprob, int32_t coupled) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> scratch;
  pipe.InitBuffer(scratch, kDrawUb);
  asc_vf_call<verify_rows>(dim3(kThreads), logits, stride, vocab, chunk, splits, rows, seed,
                           position, forced, drafts, proposal, draft_row, places, numbers, kept,
                           offers, sums, special, token, accepted, raw, logprob, coupled,
                           scratch.Get<int64_t>().GetPhyAddr());
}

int32_t tandem_ascend_spec_verify(const tandem_ascend_device *device, void *stream,
                                  const float *logits, const int64_t *seed, const int64_t *position,
                                  const int32_t *forced, const int32_t *drafts,
                                  const int32_t *proposal, const int32_t *draft_row,
                                  const int32_t *places, const float *numbers, const int64_t *kept,
                                  int64_t *offers, int64_t *sums, int64_t *special, int32_t *token,
                                  int32_t *accepted, float *raw, float *logprob, int64_t rows,
                                  int64_t vocab, int64_t stride, int64_t chunk, int32_t coupled) {
  if (const int32_t status = check_chunks(rows, vocab, chunk); status != TANDEM_OK || rows == 0)
    return status;
  if (vocab > 1 << 23) return TANDEM_TOO_LARGE;
  const int32_t v = int32_t(vocab), c = int32_t(chunk), n = int32_t(rows);
  const int32_t splits = int32_t((vocab + chunk - 1) / chunk);
  const int64_t blocks = grid_blocks(device, rows * splits * kThreads);
  const Gm<float> line = gm_cast<float>(logits), number = gm_cast<float>(numbers);
  const Gm<int32_t> must = gm_cast<int32_t>(forced), draft = gm_cast<int32_t>(drafts),
                    offer = gm_cast<int32_t>(proposal), judged = gm_cast<int32_t>(draft_row),
                    place = gm_cast<int32_t>(places);
  const Gm<int64_t> left = gm_cast<int64_t>(kept), offered = gm_cast<int64_t>(offers),
                    sum = gm_cast<int64_t>(sums), one = gm_cast<int64_t>(special);
  int32_t status = TANDEM_OK;
  if (!coupled)
    status = TANDEM_LAUNCH_UB(offers_kernel, blocks, kDrawUb, stream, v, c, splits, n, must, draft,
                              offer, judged, offered);
  if (!coupled && status == TANDEM_OK)
    status = TANDEM_LAUNCH_UB(judge_kernel, blocks, kDrawUb, stream, line, stride, v, c, splits, n,
                              must, draft, offer, judged, place, number, left, offered, sum, one);
  if (status != TANDEM_OK) return status;
  return TANDEM_LAUNCH_UB(
      verify_kernel, grid_blocks(device, rows * kThreads), kDrawUb, stream, line, stride, v, c,
      splits, n, gm_cast<int64_t>(seed), gm_cast<int64_t>(position), must, draft, offer, judged,
      place, number, left, offered, sum, one, gm_cast<int32_t>(token), gm_cast<int32_t>(accepted),
      gm_cast<float>(raw), gm_cast<float>(logprob), coupled);
}

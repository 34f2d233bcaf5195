// Sums over what the filters leave of a row, by chunks and then of all of it.
#pragma once

#include "_filters.h"

// The key of a peak orders by (value, lower id first) and is kSpoilt where there is a NaN.
constexpr uint64_t kSpoilt = ~uint64_t(0);

__simt_callee__ inline uint64_t peak_key(float value, int32_t id) {
  const uint32_t order = uint32_t(image(value)) ^ 0x80000000u;
  return uint64_t(order) << 32 | uint32_t(~id);
}
__simt_callee__ inline int32_t peak_image(uint64_t key) {
  return int32_t(uint32_t(key >> 32) ^ 0x80000000u);
}
__simt_callee__ inline int32_t peak_id(uint64_t key) { return int32_t(~uint32_t(key)); }

// The peak of a row; all threads get it.
__simt_callee__ inline uint64_t row_peak(Gm<uint64_t> peaks, int32_t row, int32_t splits,
                                         Ub<int64_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x);
  const uint64_t mine = thread < splits ? uint64_t(peaks[int64_t(row) * splits + thread]) : 0;
  return block_max(mine, uint64_t(0), Ub<uint64_t>(scratch));
}
__simt_callee__ inline bool is_valid(uint64_t peak) {
  return peak != kSpoilt && fabsf(preimage(peak_image(peak))) < kInfinity;
}

// log(1 + x) of a pair x >= 0, to about a unit in the last place.
//
// Up to 1 by the series; beyond, 1 + x = 2^n m with m from 1 to 2, and n ln 2 in two parts of which
// the first times n is exact.
__simt_callee__ inline float log_of_one_plus(float2 x) {
  if (x.x <= 1.0f) return log1p_unit(x.x) + divide(x.y, 1.0f + x.x);
  const float whole = 1.0f + x.x;
  const float lost = (1.0f - (whole - x.x)) + x.y;
  const int32_t n = (__float_as_int(whole) >> 23) - 127;
  const float m = whole * power_of_two(-n);
  const float rest = float(n) * -2.12194440e-4f + divide(lost, whole);
  return float(n) * 0.693359375f + (log1p_unit(m - 1.0f) + rest);
}

// Of chunks: weight above the bound, tokens at it, lowest id of weight 2^30, exponentials above the
// bound and, where wanted, of all tokens. Those at the bound are counted only, for how many of them
// are left depends on the chunks before; and the best token is in no sum of exponentials, for its
// share is exactly 1.
__simt_vf__ __launch_bounds__(kThreads) inline void measure(
    Gm<float> logits, int64_t stride, int32_t vocab, int32_t chunk, int32_t splits, int32_t rows,
    Gm<float> temperature, Gm<float> top_p, Gm<int32_t> top_k, Gm<float> min_p, Gm<uint64_t> peaks,
    Gm<int64_t> state, Gm<int64_t> weights, Gm<int32_t> counts, Gm<int32_t> parts,
    Gm<uint64_t> sums, Gm<int32_t> places, Gm<int64_t> kept, int32_t filtered, int32_t with_all,
    Ub<int64_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x);
  Ub<int64_t> now = scratch + kState;
  for (int32_t item = int32_t(blockIdx.x); item < rows * splits; item += int32_t(gridDim.x)) {
    const int32_t row = item / splits, part = item % splits, end = min(part * chunk + chunk, vocab);
    const uint64_t best = row_peak(peaks, row, splits, scratch);
    const float peak = preimage(peak_image(best)), heat = temperature[row];
    int32_t bound = heat < kGreedyBelow ? peak_image(best) : kUnbounded;
    int32_t keep = heat < kGreedyBelow ? 1 : 0;
    if (filtered) {
      read_state(state, weights, counts, kSearchPasses, row, rows, of_32_bits(top_p[row]),
                 top_k[row], scratch);
      bound = int32_t(int64_t(now[kHi]));
      keep = int32_t(int64_t(now[kKeep]));
    }
    if (part == 0 && thread == 0) {
      places[row * kPlaces + kBound] = bound;
      places[row * kPlaces + kLast] = keep;  // `finish` makes an id of it
    }
    if (!is_valid(best)) continue;  // the same for all threads
    const float inverse = inverse_temperature(heat);
    const int32_t least = min_p == nullptr ? 0 : least_weight(min_p[row]), first = peak_id(best);
    Gm<float> line = logits + row * stride;
    int64_t weight_sum = 0;
    int32_t ties = 0, favourite = kNowhere;
    float2 spread = make_float2(0.0f, 0.0f), all = spread;
    for (int32_t token = part * chunk + thread; token < end; token += kThreads) {
      const float x = line[token];
      const float power = exp_negative(scaled_logit(x, peak, inverse));
      const int32_t weight = integer_weight(power), key = image(x);
      const bool over = key > bound && weight >= least, tie = key == bound && keep > 0;
      if (over) weight_sum += weight;
      if (tie) ++ties;
      if ((over || tie) && weight == kHeaviest) favourite = min(favourite, token);
      if (over && token != first) spread = add_pairs(spread, make_float2(power, 0.0f));
      if (with_all && token != first)
        all = add_pairs(all, make_float2(exp_negative(x - peak), 0.0f));
    }
    weight_sum = block_sum(weight_sum, scratch);
    ties = block_sum(ties, Ub<int32_t>(scratch));
    favourite = block_min(favourite, kNowhere, Ub<int32_t>(scratch));
    Ub<uint64_t> pairs = Ub<uint64_t>(scratch);
    const uint64_t spread_sum = block_combine<add_packed>(pack_pair(spread), uint64_t(0), pairs);
    uint64_t all_sum = 0;
    if (with_all) all_sum = block_combine<add_packed>(pack_pair(all), uint64_t(0), pairs);
    if (thread == 0) {
      kept[item] = weight_sum;
      parts[item] = ties;
      parts[rows * splits + item] = favourite;
      sums[item] = spread_sum;
      sums[rows * splits + item] = all_sum;
    }
  }
}

// The id of the token at the bound that has so many of them before it, in its chunk.
__simt_callee__ inline int32_t find_tie(Gm<float> line, int32_t begin, int32_t end, int32_t bound,
                                        int32_t before, Ub<int64_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x);
  for (int32_t base = begin, seen = 0; base < end; base += kThreads) {
    const int32_t token = base + thread;
    const int32_t tie = token < end && image(line[token]) == bound ? 1 : 0;
    const int32_t rank = seen + block_sum_before(tie, Ub<int32_t>(scratch));
    if (tie && rank == before) scratch[kFound] = token;
    seen += block_sum(tie, Ub<int32_t>(scratch));
    if (seen > before) break;  // the same for all threads
  }
  asc_syncthreads();
  return int32_t(int64_t(scratch[kFound]));
}

// A row at a time: weights by chunk with the tokens that are kept at the bound, which of these is
// the last, and the logs of its sums.
__simt_vf__ __launch_bounds__(kThreads) inline void finish(
    Gm<float> logits, int64_t stride, int32_t vocab, int32_t chunk, int32_t splits, int32_t rows,
    Gm<float> temperature, Gm<float> min_p, Gm<uint64_t> peaks, Gm<int32_t> parts,
    Gm<uint64_t> sums, Gm<int32_t> places, Gm<float> numbers, Gm<int64_t> kept, int32_t with_all,
    Ub<int64_t> scratch) {
  const int32_t thread = int32_t(threadIdx.x);
  for (int32_t row = int32_t(blockIdx.x); row < rows; row += int32_t(gridDim.x)) {
    const uint64_t best = row_peak(peaks, row, splits, scratch);
    Gm<int32_t> place = places + row * kPlaces;
    Gm<float> number = numbers + row * kNumbers;
    if (!is_valid(best)) {
      if (thread == 0) place[kValid] = 0;
      continue;
    }
    const int32_t bound = place[kBound], keep = place[kLast];
    const float peak = preimage(peak_image(best)), inverse = inverse_temperature(temperature[row]);
    const int32_t least = min_p == nullptr ? 0 : least_weight(min_p[row]);
    const bool mine = thread < splits;  // a thread takes a chunk
    const int32_t item = row * splits + thread;
    const int32_t ties = mine ? int32_t(parts[item]) : 0;
    const int32_t before = block_sum_before(ties, Ub<int32_t>(scratch));
    const int32_t taken = max(min(keep - before, ties), 0);
    const int32_t all_ties = block_sum(ties, Ub<int32_t>(scratch));
    const int32_t all_taken = min(keep, all_ties);
    const float power =
        keep > 0 ? exp_negative(scaled_logit(preimage(bound), peak, inverse)) : 0.0f;
    const int32_t weight = integer_weight(power);
    const bool alive = weight >= least;
    if (mine && alive) kept[item] = kept[item] + int64_t(weight) * taken;
    int32_t last = keep > 0 ? kNowhere : -1;
    if (keep > 0 && keep < all_ties) {  // the same for all threads
      if (before < keep && keep <= before + ties) {
        scratch[kFound] = thread;
        scratch[kFound + 1] = keep - before - 1;
      }
      asc_syncthreads();
      const int32_t part = int32_t(int64_t(scratch[kFound]));
      const int32_t rank = int32_t(int64_t(scratch[kFound + 1]));
      asc_syncthreads();
      last = find_tie(logits + row * stride, part * chunk, min(part * chunk + chunk, vocab), bound,
                      rank, scratch);
    }
    const int32_t favourite = block_min(mine ? int32_t(parts[rows * splits + item]) : kNowhere,
                                        kNowhere, Ub<int32_t>(scratch));
    Ub<uint64_t> pairs = Ub<uint64_t>(scratch);
    const float2 spread =
        unpack_pair(block_combine<add_packed>(mine ? uint64_t(sums[item]) : 0, uint64_t(0), pairs));
    float2 all = make_float2(0.0f, 0.0f);
    if (with_all)
      all = unpack_pair(block_combine<add_packed>(mine ? uint64_t(sums[rows * splits + item]) : 0,
                                                  uint64_t(0), pairs));
    if (thread == 0) {
      // Of the tokens at the bound the best may be one.
      const int32_t others = all_taken - (keep > 0 && bound == peak_image(best) ? 1 : 0);
      const float tied = alive ? power * float(others) : 0.0f;
      const float lost = alive ? fmaf(power, float(others), -tied) : 0.0f;
      place[kValid] = 1;
      place[kFirst] = peak_id(best);
      place[kLast] = last;
      place[kLeast] = least;
      place[kFavourite] = favourite;
      number[kPeak] = peak;
      number[kInverse] = inverse;
      number[kLogKept] = log_of_one_plus(add_pairs(spread, make_float2(tied, lost)));
      number[kLogAll] = log_of_one_plus(all);
    }
  }
}

// Coefficients of a sub-layer's streams from the sums of a pass, and the end of hc_mix, hc_enter
// and hc_step.
#pragma once

#include <cstdint>

#include "functions.h"
#include "hyper.h"
#include "norm.h"
#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA {

// Of a sub-layer, and where its coefficients go: see ops/hc_mix.cpp.
struct Mixing {
  const float *base, *scale;
  float *pre, *post, *comb;
  float norm_eps, hc_eps;
  int64_t iters;
};

// What becomes of the collapsed rows: normalised where they lie, and quantised.
struct Entering {
  const float *weight;
  uint8_t *codes, *scales;
};

// Divides every row (`along` 1, `across` m) or column of c [m, m] by its sum + eps.
TANDEM_INLINE void normalise_sums(float *c, int64_t m, int64_t along, int64_t across, float eps) {
  for (int64_t i = 0; i < m; ++i) {
    float sum = c[i * across];
    for (int64_t j = 1; j < m; ++j) sum += c[i * across + j * along];
    sum += eps;
    for (int64_t j = 0; j < m; ++j) c[i * across + j * along] /= sum;
  }
}

TANDEM_INLINE void sinkhorn(float *c, int64_t m, float eps, int64_t iters) {
  for (int64_t i = 0; i < m; ++i) {
    float *row = c + i * m, top = row[0], sum = 0.0f;
    for (int64_t j = 1; j < m; ++j) top = row[j] > top ? row[j] : top;
    for (int64_t j = 0; j < m; ++j) sum += row[j] = exp_f32(row[j] - top);
    for (int64_t j = 0; j < m; ++j) row[j] = row[j] / sum + eps;
  }
  normalise_sums(c, m, m, 1, eps);
  for (int64_t n = 1; n < iters; ++n) {
    normalise_sums(c, m, 1, m, eps);
    normalise_sums(c, m, m, 1, eps);
  }
}

// Coefficients of row t, whose sums lie at `place` of the group.
template <int M>
TANDEM_INLINE void mix_row(const StreamPass &pass, const Mixing &mixing, int64_t t, int64_t place) {
  const int64_t m = M ? M : pass.m, mixes = m * m + 2 * m, size = (mixes + 1) * kLanes;
  const float *partial = pass.partial + place * pass.blocks() * size;
  float dots[kMaxMixes + 1];
  for (int64_t c = 0; c <= mixes; ++c) {
    Sum sum(load(partial + c * kLanes));
    for (int64_t b = 1; b < pass.blocks(); ++b) sum += load(partial + b * size + c * kLanes);
    dots[c] = tree_sum(sum.value());
  }
  const float factor = inverse_root(dots[mixes], m * pass.H, mixing.norm_eps);
  const float *base = mixing.base, *scale = mixing.scale;
  float comb[kMaxStreams * kMaxStreams];
  for (int64_t i = 0; i < m; ++i) {
    const float pre = dots[i] * factor * scale[0] + base[i];
    const float post = dots[m + i] * factor * scale[1] + base[m + i];
    mixing.pre[t * m + i] = sigmoid(pre) + mixing.hc_eps;
    mixing.post[t * m + i] = 2.0f * sigmoid(post);
  }
  for (int64_t i = 0; i < m * m; ++i)
    comb[i] = dots[2 * m + i] * factor * scale[2] + base[2 * m + i];
  sinkhorn(comb, m, mixing.hc_eps, mixing.iters);
  for (int64_t i = 0; i < m * m; ++i) mixing.comb[t * m * m + i] = comb[i];
}

// The end of rows [group, stop): a task is a row's coefficients or, where there is an `entering`,
// its normalised and quantised input.
TANDEM_INLINE void finish_rows(const StreamPass &pass, const Mixing &mixing,
                               const Entering *entering, int64_t group, int64_t stop) {
  const int64_t tasks = entering ? 2 : 1, work = 6 * pass.H + 64 * pass.mixes();
  parallel_for(tasks * (stop - group), work, [=, &pass, &mixing](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t place = task / tasks, t = group + place, H = pass.H;
      if (task % tasks) {
        norm_row(pass.x + t * H, entering->weight, pass.x + t * H, entering->codes + t * H,
                 entering->scales + t * (H / 32), H, mixing.norm_eps);
      } else if (pass.m == 4) {
        mix_row<4>(pass, mixing, t, place);
      } else {
        mix_row<0>(pass, mixing, t, place);
      }
    }
  });
}

// hc_mix (no `entering`), hc_enter or hc_step, whose arguments are otherwise right.
TANDEM_INLINE int32_t run_mixing(const StreamPass &pass, const Mixing &mixing,
                                 const Entering *entering, int64_t T, int64_t partial_size) {
  if (T < 0 || pass.m < 1 || pass.m > kMaxStreams || pass.H < 1 || (entering && pass.H % 32) ||
      partial_size < pass.partial_size(T))
    return TANDEM_BAD_SHAPE;
  if (!(mixing.norm_eps >= 0.0f) || !(mixing.hc_eps >= 0.0f) || mixing.iters < 1)
    return TANDEM_BAD_VALUE;
  const bool written = mixing.pre && mixing.post && mixing.comb && pass.partial;
  const bool enters =
      !entering || (pass.pre && pass.x && entering->weight && entering->codes && entering->scales);
  const bool leaves = !pass.left || (pass.y && pass.before && pass.post && pass.comb);
  if (T &&
      (!pass.trunk || !pass.fn || !mixing.base || !mixing.scale || !written || !enters || !leaves))
    return TANDEM_NULL_POINTER;
  for (int64_t group = 0; group < T; group += kGroupRows) {
    const int64_t stop = group + kGroupRows < T ? group + kGroupRows : T;
    run_pass(pass, group, stop);
    finish_rows(pass, mixing, entering, group, stop);
  }
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA

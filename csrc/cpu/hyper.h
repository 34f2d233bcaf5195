// The residual streams between two sub-layers: leaving one (mixing the streams), the collapsed
// input of the next and the projection that gives its coefficients, in one pass over the streams.
//
// A row's columns are taken in blocks of kBlock, of all m streams. The sums that need all columns,
// the dot products with the rows of fn and the sum of squares, run in 16 lanes: in a block, lane l
// adds stream 0's columns l, l + 16, ... of the block, then stream 1's, and so on; the blocks'
// lanes are added in order, and last the lanes, see tree_sum. So a block is a task that gives the
// same bits whoever does it, and a single row keeps several threads busy.
#pragma once

#include <cstdint>

#include "functions.h"
#include "norm.h"
#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA {

constexpr int kMaxStreams = 8;
constexpr int kMaxMixes = kMaxStreams * kMaxStreams + 2 * kMaxStreams;
constexpr int64_t kBlock = 512;
constexpr int kRowTile = 4, kMixTile = 6;
// Rows of a task, which read a block's part of fn while it is in the cache, and rows between two
// meetings of the threads, whose sums of blocks lie in `partial`.
constexpr int64_t kTaskRows = 16, kGroupRows = 64;

// What one pass does; a part whose first pointer is NULL is left out.
struct StreamPass {
  const uint16_t *y, *before;  // leave: bf16 [T, H], [T, m, H]
  const float *post, *comb;    // f32 [T, m], [T, m, m]
  uint16_t *left;              // bf16 [T, m, H], which is then `trunk`
  const float *pre;            // collapse: f32 [T, m]
  uint16_t *x;                 // bf16 [T, H]
  const float *fn;             // project: f32 [m * m + 2 m, m * H]
  float *partial;              // f32 [kGroupRows, blocks, m * m + 2 m + 1, 16]
  const uint16_t *trunk;
  int64_t m, H;

  int64_t blocks() const { return (H + kBlock - 1) / kBlock; }
  int64_t mixes() const { return m * m + 2 * m; }
  int64_t partial_size(int64_t rows) const {
    const int64_t kept = rows < kGroupRows ? rows : kGroupRows;
    return kept * blocks() * (mixes() + 1) * kLanes;
  }
};

// f(first column, columns) for steps of 16 lanes, the last one not full where the width is not.
template <typename F>
TANDEM_INLINE void each_step(int64_t begin, int64_t end, const F &f) {
  int64_t k = begin;
  for (; k + kLanes <= end; k += kLanes) f(k, static_cast<int64_t>(kLanes));
  if (k < end) f(k, end - k);
}

template <typename T>
TANDEM_INLINE Vec load_some(const T *p, int64_t count) {
  return count == kLanes ? load(p) : load_part(p, count);
}

TANDEM_INLINE void store_some(uint16_t *p, const Vec &v, int64_t count) {
  if (count == kLanes)
    store(p, v);
  else
    store_part(p, v, count);
}

// left[j] = post[j] * y + sum over i of comb[i, j] * before[i], i ascending, of one row.
template <int M>
TANDEM_INLINE void leave_columns(const uint16_t *y, const uint16_t *before, const float *post,
                                 const float *comb, uint16_t *left, int64_t streams, int64_t H,
                                 int64_t begin, int64_t end) {
  const int64_t m = M ? M : streams;
  each_step(begin, end, [&](int64_t k, int64_t count) {
    const Vec output = load_some(y + k, count);
    Vec old[M ? M : kMaxStreams];
    for (int64_t i = 0; i < m; ++i) old[i] = load_some(before + i * H + k, count);
    for (int64_t j = 0; j < m; ++j) {
      Vec sum = output * post[j];
      for (int64_t i = 0; i < m; ++i) sum += old[i] * comb[i * m + j];
      store_some(left + j * H + k, sum, count);
    }
  });
}

// x = sum over the streams of trunk[i] * pre[i], in order, of one row.
template <int M>
TANDEM_INLINE void collapse_columns(const uint16_t *trunk, const float *pre, uint16_t *x,
                                    int64_t streams, int64_t H, int64_t begin, int64_t end) {
  const int64_t m = M ? M : streams;
  each_step(begin, end, [&](int64_t k, int64_t count) {
    Vec sum = load_some(trunk + k, count) * pre[0];
    for (int64_t i = 1; i < m; ++i) sum += load_some(trunk + i * H + k, count) * pre[i];
    store_some(x + k, sum, count);
  });
}

// Lanes of R rows of x times C rows of fn, over a block. How many at a time is a matter of speed
// only: every product keeps its own lanes and order.
template <int R, int C>
TANDEM_INLINE void project_tile(const StreamPass &pass, const uint16_t *x, const float *fn,
                                int64_t begin, int64_t end, float *partial, int64_t stride) {
  const int64_t width = pass.m * pass.H;
  Vec sums[R][C] = {};
  for (int64_t j = 0; j < pass.m; ++j)
    each_step(begin + j * pass.H, end + j * pass.H, [&](int64_t k, int64_t count) {
      Vec rows[R];
      for (int r = 0; r < R; ++r) rows[r] = load_some(x + r * width + k, count);
      for (int c = 0; c < C; ++c) {
        const Vec weights = load_some(fn + c * width + k, count);
        for (int r = 0; r < R; ++r) sums[r][c] += rows[r] * weights;
      }
    });
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) store(partial + r * stride + c * kLanes, sums[r][c]);
}

template <int R>
TANDEM_INLINE void square_tile(const StreamPass &pass, const uint16_t *x, int64_t begin,
                               int64_t end, float *partial, int64_t stride) {
  const int64_t width = pass.m * pass.H;
  Vec sums[R] = {};
  for (int64_t j = 0; j < pass.m; ++j)
    each_step(begin + j * pass.H, end + j * pass.H, [&](int64_t k, int64_t count) {
      for (int r = 0; r < R; ++r) {
        const Vec v = load_some(x + r * width + k, count);
        sums[r] += v * v;
      }
    });
  for (int r = 0; r < R; ++r) store(partial + r * stride, sums[r]);
}

// R rows from `row` on, whose sums lie from `place` of the group on.
template <int R>
TANDEM_INLINE void project_rows(const StreamPass &pass, int64_t row, int64_t place, int64_t block,
                                int64_t begin, int64_t end) {
  const int64_t width = pass.m * pass.H, mixes = pass.mixes();
  const int64_t size = (mixes + 1) * kLanes, stride = pass.blocks() * size;
  const uint16_t *x = pass.trunk + row * width;
  float *partial = pass.partial + place * stride + block * size;
  int64_t c = 0;
  for (; c + kMixTile <= mixes; c += kMixTile)
    project_tile<R, kMixTile>(pass, x, pass.fn + c * width, begin, end, partial + c * kLanes,
                              stride);
  for (; c < mixes; ++c)
    project_tile<R, 1>(pass, x, pass.fn + c * width, begin, end, partial + c * kLanes, stride);
  square_tile<R>(pass, x, begin, end, partial + mixes * kLanes, stride);
}

// One block of rows [first, last) of the group that begins at row `group`.
template <int M>
TANDEM_INLINE void pass_block(const StreamPass &pass, int64_t group, int64_t first, int64_t last,
                              int64_t block) {
  const int64_t m = M ? M : pass.m, H = pass.H, begin = block * kBlock;
  const int64_t end = begin + kBlock < H ? begin + kBlock : H;
  for (int64_t t = first; t < last; ++t) {
    if (pass.y)
      leave_columns<M>(pass.y + t * H, pass.before + t * m * H, pass.post + t * m,
                       pass.comb + t * m * m, pass.left + t * m * H, m, H, begin, end);
    if (pass.pre)
      collapse_columns<M>(pass.trunk + t * m * H, pass.pre + t * m, pass.x + t * H, m, H, begin,
                          end);
  }
  if (!pass.fn) return;
  int64_t t = first;
  for (; t + kRowTile <= last; t += kRowTile)
    project_rows<kRowTile>(pass, t, t - group, block, begin, end);
  for (; t < last; ++t) project_rows<1>(pass, t, t - group, block, begin, end);
}

// The pass over rows [group, stop), split over blocks and rows.
TANDEM_INLINE void run_pass(const StreamPass &pass, int64_t group, int64_t stop) {
  const int64_t pieces = (stop - group + kTaskRows - 1) / kTaskRows;
  const int64_t columns = pass.m * (pass.H < kBlock ? pass.H : kBlock);
  const int64_t work = (pass.fn ? 4 * pass.mixes() : 4) * columns;
  parallel_for(pass.blocks() * pieces, work, [=, &pass](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = group + task % pieces * kTaskRows;
      const int64_t last = first + kTaskRows < stop ? first + kTaskRows : stop;
      if (pass.m == 4)  // a constant, so that loops over streams unroll
        pass_block<4>(pass, group, first, last, task / pieces);
      else
        pass_block<0>(pass, group, first, last, task / pieces);
    }
  });
}

}  // namespace tandem::TANDEM_ISA

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
#include <type_traits>

#include "functions.h"
#include "norm.h"
#include "parallel.h"
#include "vec.h"

namespace tandem::TANDEM_ISA {

constexpr int kMaxStreams = 8;
constexpr int kMaxMixes = kMaxStreams * kMaxStreams + 2 * kMaxStreams;
constexpr int64_t kBlock = 384;
#if defined(__AVX512F__)
constexpr int kRowTile = 4, kMixTile = 6;  // as many sums as there are registers
#else
constexpr int kRowTile = 2, kMixTile = 3;
#endif
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

// A step of 16 columns, known when compiled, or of less at the end of a row.
struct FullStep {};

template <typename T>
TANDEM_INLINE Vec load_some(const T *p, FullStep) {
  return load(p);
}

template <typename T>
TANDEM_INLINE Vec load_some(const T *p, int64_t count) {
  return load_part(p, count);
}

TANDEM_INLINE void store_some(uint16_t *p, const Vec &v, FullStep) { store(p, v); }
TANDEM_INLINE void store_some(uint16_t *p, const Vec &v, int64_t count) { store_part(p, v, count); }

// f(first column, step) for columns [begin, end).
template <typename F>
TANDEM_INLINE void each_step(int64_t begin, int64_t end, const F &f) {
  int64_t k = begin;
  for (; k + kLanes <= end; k += kLanes) f(k, FullStep{});
  if (k < end) f(k, end - k);
}

// left[j] = post[j] * y + sum over i of comb[i, j] * before[i], i ascending, of one row.
template <int M>
TANDEM_INLINE void leave_columns(const uint16_t *y, const uint16_t *before, const float *post,
                                 const float *comb, uint16_t *left, int64_t streams, int64_t H,
                                 int64_t begin, int64_t end) {
  const int64_t m = M ? M : streams;
  each_step(begin, end, [&](int64_t k, auto step) TANDEM_BODY {
    const Vec output = load_some(y + k, step);
    Vec old[M ? M : kMaxStreams];
    for (int64_t i = 0; i < m; ++i) old[i] = load_some(before + i * H + k, step);
    for (int64_t j = 0; j < m; ++j) {
      Vec sum = output * post[j];
      for (int64_t i = 0; i < m; ++i) sum += old[i] * comb[i * m + j];
      store_some(left + j * H + k, sum, step);
    }
  });
}

// x = sum over the streams of trunk[i] * pre[i], in order, of one row.
template <int M>
TANDEM_INLINE void collapse_columns(const uint16_t *trunk, const float *pre, uint16_t *x,
                                    int64_t streams, int64_t H, int64_t begin, int64_t end) {
  const int64_t m = M ? M : streams;
  each_step(begin, end, [&](int64_t k, auto step) TANDEM_BODY {
    Vec sum = load_some(trunk + k, step) * pre[0];
    for (int64_t i = 1; i < m; ++i) sum += load_some(trunk + i * H + k, step) * pre[i];
    store_some(x + k, sum, step);
  });
}

// Adds to the lanes of R rows of x times C rows of fn what the whole steps of columns [begin, end)
// bring. How many at a time is a matter of speed only: every product keeps its own lanes and order.
// Meanwhile what lies `ahead`, as many elements further in fn, comes into the second cache: pieces
// of rows are too short for the processor to foresee the next.
template <int R, int C>
TANDEM_INLINE void project_tile(const uint16_t *x, const float *fn, int64_t width, int64_t begin,
                                int64_t end, int64_t ahead, float *partial, int64_t stride) {
  Sum sums[R][C];
  unrolled<R>([&](auto r) TANDEM_BODY {
    unrolled<C>([&](auto c)
                    TANDEM_BODY { sums[r][c] = Sum(load(partial + r * stride + c * kLanes)); });
  });
  for (int64_t k = begin; k + kLanes <= end; k += kLanes) {
    Vec rows[R];
    unrolled<R>([&](auto r) TANDEM_BODY { rows[r] = load(x + r * width + k); });
    unrolled<C>([&](auto c) TANDEM_BODY {
      const float *place = fn + c * width + k;
      const Vec weights = load(place);
      __builtin_prefetch(place + ahead, 0, 2);
      unrolled<R>([&](auto r) TANDEM_BODY { sums[r][c] += rows[r] * weights; });
    });
  }
  unrolled<R>([&](auto r) TANDEM_BODY {
    unrolled<C>([&](auto c)
                    TANDEM_BODY { store(partial + r * stride + c * kLanes, sums[r][c].value()); });
  });
}

// The same of squares of R rows.
template <int R>
TANDEM_INLINE void square_tile(const uint16_t *x, int64_t width, int64_t begin, int64_t end,
                               float *partial, int64_t stride) {
  Sum sums[R];
  unrolled<R>([&](auto r) TANDEM_BODY { sums[r] = Sum(load(partial + r * stride)); });
  for (int64_t k = begin; k + kLanes <= end; k += kLanes)
    unrolled<R>([&](auto r) TANDEM_BODY {
      const Vec v = load(x + r * width + k);
      sums[r] += v * v;
    });
  unrolled<R>([&](auto r) TANDEM_BODY { store(partial + r * stride, sums[r].value()); });
}

// The last step of a row's stream, of less than 16 columns, for all its sums.
TANDEM_INLINE void project_rest(const uint16_t *x, const float *fn, int64_t width, int64_t mixes,
                                int64_t count, float *partial) {
  const Vec row = load_part(x, count);
  for (int64_t c = 0; c <= mixes; ++c, partial += kLanes)
    store(partial, load(partial) + row * (c < mixes ? load_part(fn + c * width, count) : row));
}

// f(std::integral_constant<int, rows>, first) for tiles of rows.
template <typename F>
TANDEM_INLINE void each_tile(int64_t count, const F &f) {
  int64_t r = 0;
  for (; r + kRowTile <= count; r += kRowTile) f(std::integral_constant<int, kRowTile>{}, r);
  for (; r < count; ++r) f(std::integral_constant<int, 1>{}, r);
}

// `count` rows from x on. A stream at a time: the columns of kMixTile rows of fn and of all rows of
// x stay in the nearest cache.
TANDEM_INLINE void project_block(const StreamPass &pass, const uint16_t *x, float *partial,
                                 int64_t count, int64_t begin, int64_t end) {
  const int64_t width = pass.m * pass.H, mixes = pass.mixes();
  const int64_t stride = pass.blocks() * (mixes + 1) * kLanes;
  for (int64_t r = 0; r < count; ++r)
    std::memset(partial + r * stride, 0, static_cast<size_t>(mixes + 1) * sizeof(Vec));
  for (int64_t j = 0; j < pass.m; ++j) {
    const int64_t from = j * pass.H + begin, to = j * pass.H + end, rest = (end - begin) % kLanes;
    const int64_t later = j + 1 < pass.m ? pass.H : kBlock - j * pass.H;  // next stream, next block
    const auto project = [&](auto tile, int64_t c) TANDEM_BODY {
      const int64_t next = c + tile() < mixes ? tile() * width : later - c * width;
      each_tile(count, [&](auto rows, int64_t r) TANDEM_BODY {
        project_tile<rows(), tile()>(x + r * width, pass.fn + c * width, width, from, to, next,
                                     partial + r * stride + c * kLanes, stride);
      });
    };
    int64_t c = 0;
    for (; c + kMixTile <= mixes; c += kMixTile)
      project(std::integral_constant<int, kMixTile>{}, c);
    for (; c < mixes; ++c) project(std::integral_constant<int, 1>{}, c);
    each_tile(count, [&](auto rows, int64_t r) TANDEM_BODY {
      square_tile<rows()>(x + r * width, width, from, to, partial + r * stride + mixes * kLanes,
                          stride);
    });
    for (int64_t r = 0; rest && r < count; ++r)
      project_rest(x + r * width + to - rest, pass.fn + to - rest, width, mixes, rest,
                   partial + r * stride);
  }
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
  const int64_t sums = (pass.mixes() + 1) * kLanes;
  float *partial = pass.partial + ((first - group) * pass.blocks() + block) * sums;
  project_block(pass, pass.trunk + first * m * H, partial, last - first, begin, end);
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

// Mixing coefficients of the multi-stream residual: a [m*m+2m, m*H] projection of each row, scaled
// by the row's inverse RMS, then sigmoids and a Sinkhorn normalisation. See tandem.h.
#include <cmath>

#include "common.h"
#include "kernels.h"
#include "parallel.h"

namespace tandem {
namespace {

constexpr int kMaxStreams = 8;
constexpr int kMaxMixes = kMaxStreams * kMaxStreams + 2 * kMaxStreams;
constexpr int kLanes = 16;
constexpr int kRowTile = 4;
constexpr int kColTile = 6;

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef uint32_t VecU32 __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef uint16_t VecU16 __attribute__((vector_size(kLanes * sizeof(uint16_t))));

struct Call {
  const uint16_t *trunk;
  const float *fn, *base, *scale;
  int64_t m, width;  // width = m * H
  float norm_eps, hc_eps;
  int32_t iters;
  float *pre, *post, *comb;
};

TANDEM_INLINE Vec load(const float *p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

TANDEM_INLINE Vec load(const uint16_t *p) {
  VecU16 h;
  std::memcpy(&h, p, sizeof h);
  return (Vec)(__builtin_convertvector(h, VecU32) << 16);
}

// The last, incomplete step of a sum: missing elements count as zero.
template <typename T>
TANDEM_INLINE Vec load_part(const T *p, int64_t count) {
  T padded[kLanes] = {};
  std::memcpy(padded, p, static_cast<size_t>(count) * sizeof(T));
  return load(padded);
}

TANDEM_INLINE float tree_sum(const Vec &v) {
  float s[kLanes];
  std::memcpy(s, &v, sizeof s);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) s[i] += s[i + half];
  return s[0];
}

// R rows of x times C rows of w. The tile is a matter of speed only: every product keeps its own
// lanes and order.
template <int R, int C>
TANDEM_INLINE void dot_tile(const uint16_t *x, const float *w, int64_t width, float *out) {
  Vec acc[R][C] = {};
  const int64_t body = width / kLanes * kLanes;
  for (int64_t k = 0; k < body; k += kLanes) {
    Vec xs[R];
    for (int r = 0; r < R; ++r) xs[r] = load(x + r * width + k);
    for (int c = 0; c < C; ++c) {
      const Vec wc = load(w + c * width + k);
      for (int r = 0; r < R; ++r) acc[r][c] += xs[r] * wc;
    }
  }
  if (body < width) {
    for (int r = 0; r < R; ++r) {
      const Vec xr = load_part(x + r * width + body, width - body);
      for (int c = 0; c < C; ++c) acc[r][c] += xr * load_part(w + c * width + body, width - body);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) out[r * kMaxMixes + c] = tree_sum(acc[r][c]);
}

TANDEM_INLINE float inverse_rms(const uint16_t *x, int64_t width, float eps) {
  Vec acc = {};
  const int64_t body = width / kLanes * kLanes;
  for (int64_t k = 0; k < body; k += kLanes) {
    const Vec v = load(x + k);
    acc += v * v;
  }
  if (body < width) {
    const Vec v = load_part(x + body, width - body);
    acc += v * v;
  }
  return 1.0f / std::sqrt(tree_sum(acc) / static_cast<float>(width) + eps);
}

// e^x through a double polynomial: the C library's expf differs between its own CPU variants.
// Relative error before the final rounding is below 1e-12. NaN stays NaN.
TANDEM_INLINE float exp_f32(float x) {
  constexpr double kLog2e = 1.4426950408889634, kLn2 = 0.6931471805599453;
  constexpr double kToInteger = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double v = x < -150.0f ? -150.0 : x > 150.0f ? 150.0 : static_cast<double>(x);
  const double shifted = v * kLog2e + kToInteger;
  const double k = shifted - kToInteger;
  const double r = v - k * kLn2;
  double p = 1.0 / 39916800.0;
  constexpr double kInverseFactorials[] = {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                                           1.0 / 720,     1.0 / 120,    1.0 / 24,    1.0 / 6,
                                           0.5,           1.0,          1.0};
  for (const double c : kInverseFactorials) p = p * r + c;
  uint64_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 1023) << 52;  // the low bits of `shifted` hold k; this makes the double 2^k
  double power;
  std::memcpy(&power, &bits, sizeof power);
  return static_cast<float>(p * power);
}

TANDEM_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

// Divides every row (stride 1 between its members) or column of c [m, m] by its sum + eps.
TANDEM_INLINE void normalise(float *c, int m, int along, int across, float eps) {
  for (int i = 0; i < m; ++i) {
    float sum = c[i * across];
    for (int j = 1; j < m; ++j) sum += c[i * across + j * along];
    sum += eps;
    for (int j = 0; j < m; ++j) c[i * across + j * along] /= sum;
  }
}

TANDEM_INLINE void sinkhorn(float *c, int m, float eps, int32_t iters) {
  for (int i = 0; i < m; ++i) {
    float *row = c + i * m, top = row[0], sum = 0.0f;
    for (int j = 1; j < m; ++j) top = row[j] > top ? row[j] : top;
    for (int j = 0; j < m; ++j) sum += row[j] = exp_f32(row[j] - top);
    for (int j = 0; j < m; ++j) row[j] = row[j] / sum + eps;
  }
  normalise(c, m, m, 1, eps);
  for (int32_t n = 1; n < iters; ++n) {
    normalise(c, m, 1, m, eps);
    normalise(c, m, m, 1, eps);
  }
}

TANDEM_INLINE void finish_row(const Call &call, int64_t row, int m, const float *dots) {
  const float rms = inverse_rms(call.trunk + row * call.width, call.width, call.norm_eps);
  const float *base = call.base, *scale = call.scale;
  float *pre = call.pre + row * m, *post = call.post + row * m, *comb = call.comb + row * m * m;
  for (int i = 0; i < m; ++i) {
    pre[i] = sigmoid(dots[i] * rms * scale[0] + base[i]) + call.hc_eps;
    post[i] = 2.0f * sigmoid(dots[m + i] * rms * scale[1] + base[m + i]);
  }
  for (int i = 0; i < m * m; ++i) comb[i] = dots[2 * m + i] * rms * scale[2] + base[2 * m + i];
  sinkhorn(comb, m, call.hc_eps, call.iters);
}

template <int R>
TANDEM_INLINE void mix_rows(const Call &call, int64_t row) {
  const int m = static_cast<int>(call.m), mixes = m * m + 2 * m;
  const uint16_t *x = call.trunk + row * call.width;
  float dots[R * kMaxMixes];
  int c = 0;
  for (; c + kColTile <= mixes; c += kColTile)
    dot_tile<R, kColTile>(x, call.fn + c * call.width, call.width, dots + c);
  for (; c < mixes; ++c) dot_tile<R, 1>(x, call.fn + c * call.width, call.width, dots + c);
  for (int r = 0; r < R; ++r) {
    const float *d = dots + r * kMaxMixes;
    if (m == 4)
      finish_row(call, row + r, 4, d);  // constant m: the compiler unrolls the Sinkhorn loops
    else
      finish_row(call, row + r, m, d);
  }
}

TANDEM_CLONES void mix_range(const void *ctx, int64_t begin, int64_t end) {
  const Call &call = *static_cast<const Call *>(ctx);
  int64_t row = begin;
  for (; row + kRowTile <= end; row += kRowTile) mix_rows<kRowTile>(call, row);
  for (; row < end; ++row) mix_rows<1>(call, row);
}

}  // namespace

int32_t hc_mix(const uint16_t *trunk, const float *fn, const float *base, const float *scale,
               int64_t T, int64_t m, int64_t H, float norm_eps, float hc_eps, int32_t iters,
               float *pre, float *post, float *comb) {
  if (T < 0 || m < 1 || m > kMaxStreams || H < 1) return TANDEM_BAD_SHAPE;
  if (!(norm_eps >= 0.0f) || !(hc_eps >= 0.0f) || iters < 1) return TANDEM_BAD_VALUE;
  if (T == 0) return TANDEM_OK;
  if (int32_t status = check_pointers(trunk, fn, base, scale, pre, post, comb)) return status;
  const Call call{trunk, fn, base, scale, m, m * H, norm_eps, hc_eps, iters, pre, post, comb};
  for_rows(T, call.width * (m * m + 2 * m) / kLanes, mix_range, &call);
  return TANDEM_OK;
}

}  // namespace tandem

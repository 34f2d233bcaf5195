// compress_update: the softmax-weighted sum of the `ratio` values that end at each row.
//
//   value, gate    f32 [T, D]
//   state          f32 [slots, ring, 2, D]   gate, then value, by position mod ring; changed. The
//                                            last slot is scratch, that of rows with slot -1
//   positions, slot, chunk_start, chunk_end   i32 [T]
//   latent         bf16 [T, D]               out
//   ratio          at least 1
//
// Rows before a chunk are read from the state, and all that is read is read before the last `ring`
// rows of each chunk are written.
#include "functions.h"
#include "parallel.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA::ops::compress_update {

constexpr int64_t kPiece = 64;  // channels of a task

struct Call {
  const float *value, *gate;
  float *state;
  const int32_t *positions, *slot, *chunk_start, *chunk_end;
  uint16_t *latent;
  int64_t T, D, slots, ring, ratio;

  float *held(int64_t t, int64_t position) const {
    const int64_t of = slot[t] < 0 ? slots - 1 : slot[t], rest = position % ring;
    return state + (of * ring + (rest < 0 ? rest + ring : rest)) * 2 * D;
  }
  // Gate and value, from channel d on, of the row `back` before a row.
  void term(int64_t t, int64_t back, int64_t d, const float **g, const float **v) const {
    const bool here = t - back >= chunk_start[t] && t >= back;
    const float *stored = held(t, int64_t{positions[t]} - back);
    *g = (here ? gate + (t - back) * D : stored) + d;
    *v = (here ? value + (t - back) * D : stored + D) + d;
  }
  bool valid() const {
    for (int64_t t = 0; t < T; ++t)
      if (slot[t] >= slots) return false;
    return true;
  }
};

void pool(const Call &call, int64_t t, int64_t d, int64_t count) {
  float peak[kPiece], total[kPiece] = {}, pooled[kPiece] = {};
  for (int64_t i = 0; i < kPiece; ++i) peak[i] = float_of(0xff800000u);
  const float *g, *v;
  for (int64_t back = call.ratio - 1; back >= 0; --back) {
    call.term(t, back, d, &g, &v);
    for (int64_t i = 0; i < count; ++i) peak[i] = g[i] > peak[i] || g[i] != g[i] ? g[i] : peak[i];
  }
  for (int64_t back = call.ratio - 1; back >= 0; --back) {
    call.term(t, back, d, &g, &v);
    for (int64_t i = 0; i < count; ++i) {
      const float weight = exp_f32(g[i] - peak[i]);
      total[i] += weight;
      pooled[i] += weight * v[i];
    }
  }
  for (int64_t i = 0; i < count; ++i)
    call.latent[t * call.D + d + i] = narrow(pooled[i] / total[i]);
}

int32_t run(const float *value, const float *gate, float *state, const int32_t *positions,
            const int32_t *slot, const int32_t *chunk_start, const int32_t *chunk_end,
            uint16_t *latent, int64_t T, int64_t D, int64_t slots, int64_t ring, int64_t ratio) {
  if (T < 0 || D < 1 || slots < 1 || ring < 1) return TANDEM_BAD_SHAPE;
  if (ratio < 1) return TANDEM_BAD_VALUE;
  if (!T) return TANDEM_OK;
  if (!value || !gate || !state || !positions || !slot || !chunk_start || !chunk_end || !latent)
    return TANDEM_NULL_POINTER;
  const Call call{value,  gate, state, positions, slot, chunk_start, chunk_end,
                  latent, T,    D,     slots,     ring, ratio};
  if (!call.valid()) return TANDEM_BAD_INDEX;
  const int64_t pieces = (D + kPiece - 1) / kPiece;
  parallel_for(T * pieces, 16 * ratio * kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t each = begin; each < end; ++each) {
      const int64_t d = each % pieces * kPiece;
      pool(call, each / pieces, d, D - d < kPiece ? D - d : kPiece);
    }
  });
  parallel_for(T, 4 * D, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (slot[t] < 0 || t < int64_t{chunk_end[t]} - ring) continue;
      float *place = call.held(t, positions[t]);
      std::memcpy(place, gate + t * D, static_cast<size_t>(D) * sizeof(float));
      std::memcpy(place + D, value + t * D, static_cast<size_t>(D) * sizeof(float));
    }
  });
  return TANDEM_OK;
}

}  // namespace tandem::TANDEM_ISA::ops::compress_update

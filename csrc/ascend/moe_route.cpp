// moe_route: a warp takes a row. Its lanes deal the experts among them, and each of k rounds takes
// the best that is left: a maximum of scores as integers, then the lowest index that has it.
#include "moe_route.h"

#include "_elementary.h"

using namespace AscendC;

namespace {

constexpr int32_t kWarps = 16;  // of a block at most
constexpr int32_t kWarp = 32;   // lanes of one
constexpr int32_t kSimtUb = 216 * 1024;
constexpr int32_t kTaken = INT32_MIN;  // below the key of every number, -inf among them
constexpr int32_t kNowhere = INT32_MAX;

// int32 in the order of f32; both zeros are equal, and NaN is -inf.
__simt_callee__ inline int32_t ordered(float value) {
  const float low = __int_as_float(int32_t(0xFF800000));
  const float clean = value != value ? low : value == 0.0f ? 0.0f : value;
  const int32_t bits = __float_as_int(clean);
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}

// The square root rounded correctly, of x >= 0: of the device's root and its two neighbours the one
// whose square leaves the least, which a fused multiply-add gives exactly. Small x are scaled up,
// as the device takes subnormal numbers for 0.
__simt_callee__ inline float square_root(float x) {
  const bool small = x < 0x1p-64f;
  const float scaled = small ? x * 0x1p64f : x;
  const float near = sqrtf(scaled);
  const int32_t bits = __float_as_int(near);
  float best = near;
  if (bits > 0x00800000 && bits < 0x7F7FFFFF) {
    const float below = __int_as_float(bits - 1), above = __int_as_float(bits + 1);
    float least = fabsf(fmaf(-near, near, scaled));
    const float left_below = fabsf(fmaf(-below, below, scaled));
    const float left_above = fabsf(fmaf(-above, above, scaled));
    if (left_below < least) {
      best = below;
      least = left_below;
    }
    if (left_above < least) best = above;
  }
  return small ? best * 0x1p-32f : best;
}

__simt_callee__ inline float affinity(float logit) {
  return square_root((logit > 0.0f ? logit : 0.0f) + log1p_unit(exp_negative(-fabsf(logit))));
}

// Of scores and keys each warp has its own; a lane touches those of its own experts alone.
__simt_vf__ __launch_bounds__(kWarps *kWarp) inline void choose_experts(
    Gm<float> logits, Gm<float> bias, Gm<float> bias_vl, Gm<int32_t> roles, Gm<int32_t> chosen,
    Gm<float> weights, Ub<float> scores, Ub<int32_t> keys, int64_t rows, int32_t experts, int32_t k,
    float scaling) {
  const int32_t lane = laneid(), warp = int32_t(threadIdx.x) / kWarp;
  const int64_t step = int64_t(gridDim.x) * (blockDim.x / kWarp);
  Ub<float> score = scores + warp * experts;
  Ub<int32_t> key = keys + warp * experts;
  for (int64_t row = int64_t(warp) * gridDim.x + blockIdx.x; row < rows; row += step) {
    const bool image = roles[row] != 0;
    for (int32_t expert = lane; expert < experts; expert += kWarp) {
      const float own = affinity(logits[row * experts + expert]);
      score[expert] = own;
      key[expert] = ordered(own + (image ? float(bias_vl[expert]) : float(bias[expert])));
    }
    float share = 0.0f, total = 0.0f;
    int32_t choice = 0;
    for (int32_t i = 0; i < k; ++i) {
      int32_t best = kTaken, index = kNowhere;
      for (int32_t expert = lane; expert < experts; expert += kWarp) {
        const int32_t held = key[expert];
        if (held > best) {
          best = held;
          index = expert;
        }
      }
      const int32_t most = asc_reduce_max(best);
      const int32_t taken = asc_reduce_min(best == most ? index : kNowhere);
      float own = 0.0f;
      if (taken == index) {
        own = score[taken];
        key[taken] = kTaken;
      }
      own = asc_shfl(own, taken % kWarp);
      total += own;
      if (lane == i) {
        share = own;
        choice = taken;
      }
    }
    if (lane < k) {
      chosen[row * k + lane] = choice;
      weights[row * k + lane] = divide(share, total + 1e-20f) * scaling;
    }
  }
}

__global__ __vector__ void route_kernel(Gm<float> logits, Gm<float> bias, Gm<float> bias_vl,
                                        Gm<int32_t> roles, Gm<int32_t> chosen, Gm<float> weights,
                                        int64_t rows, int32_t experts, int32_t k, float scaling,
                                        int32_t warps) {
  TPipe pipe;
  TBuf<TPosition::VECCALC> scores, keys;
  pipe.InitBuffer(scores, warps * experts * sizeof(float));
  pipe.InitBuffer(keys, warps * experts * sizeof(int32_t));
  asc_vf_call<choose_experts>(dim3(warps * kWarp), logits, bias, bias_vl, roles, chosen, weights,
                              scores.Get<float>().GetPhyAddr(), keys.Get<int32_t>().GetPhyAddr(),
                              rows, experts, k, scaling);
}

}  // namespace

int32_t tandem_ascend_moe_route(const tandem_ascend_device *device, void *stream,
                                const float *logits, const float *bias, const float *bias_vl,
                                const int32_t *roles, int32_t *chosen, float *weights, int64_t rows,
                                int32_t experts, int32_t k, float scaling) {
  if (rows < 0 || k <= 0 || k > kWarp || k > experts) return TANDEM_BAD_VALUE;
  const int64_t held = (int64_t(experts) + 7) / 8 * 64;  // bytes of a row, whole units of UB
  const int64_t most = kSimtUb / held;
  if (most == 0) return TANDEM_TOO_LARGE;
  if (rows == 0) return TANDEM_OK;
  const int32_t warps = most < kWarps ? int32_t(most) : kWarps;
  const int64_t blocks = rows < device->vector_cores ? rows : device->vector_cores;
  return TANDEM_LAUNCH_UB(route_kernel, blocks, uint32_t(warps * held), stream,
                          gm_cast<float>(logits), gm_cast<float>(bias), gm_cast<float>(bias_vl),
                          gm_cast<int32_t>(roles), gm_cast<int32_t>(chosen),
                          gm_cast<float>(weights), rows, experts, k, scaling, warps);
}

// Faults of SIMT functions.
#include "scenario.h"

namespace {

using namespace AscendC;

// UB of a kernel, as integers.
struct Space {
  TPipe pipe;
  TBuf<TPosition::VECCALC> buffer;
  explicit Space(uint32_t bytes) { pipe.InitBuffer(buffer, bytes); }
  Ub<int32_t> ints() { return buffer.Get<int32_t>().GetPhyAddr(); }
};

__simt_vf__ __launch_bounds__(64) inline void stores_ones(Gm<float> y) {
  y[int32_t(threadIdx.x)] = 1.0f;
}
__simt_vf__ __launch_bounds__(128) inline void passes_on(Ub<int32_t> shared, Gm<float> out,
                                                         bool good) {
  const uint32_t i = threadIdx.x;
  shared[i] = int32_t(i);
  if (good) asc_syncthreads();
  if (i > 0) out[i] = float(int32_t(shared[i - 1]));
}

__simt_vf__ __launch_bounds__(128) inline void writes_over(Ub<int32_t> shared, Gm<float> out,
                                                           bool good) {
  const uint32_t i = threadIdx.x;
  shared[i] = int32_t(i);
  asc_syncthreads();
  out[i] = float(int32_t(shared[127 - i]));
  if (good) asc_syncthreads();
  shared[i] = 0;
}

__simt_vf__ __launch_bounds__(128) inline void counts(Ub<int32_t> shared, bool good) {
  if (threadIdx.x == 0) shared[0] = 0;
  asc_syncthreads();
  if (good)
    asc_atomic_add(shared, 1);
  else
    shared[0] = shared[0] + 1;
}

__simt_vf__ __launch_bounds__(128) inline void reads_a_counter(Ub<int32_t> shared, Gm<float> out,
                                                               bool good) {
  if (threadIdx.x == 0) shared[0] = 0;
  asc_syncthreads();
  asc_atomic_add(shared, 1);
  if (good) asc_syncthreads();
  out[threadIdx.x] = float(int32_t(shared[0]));
}

__simt_vf__ __launch_bounds__(128) inline void shares_a_word(Ub<int16_t> shared, bool good) {
  const uint32_t i = threadIdx.x;
  shared[good ? i : i / 2] = int16_t(i);
}

__simt_vf__ __launch_bounds__(128) inline void shares_global(Gm<float> out, bool good) {
  out[good ? threadIdx.x : 5] = 1.0f;
}

__simt_vf__ __launch_bounds__(64) inline void leaves_early(uint32_t threads) {
  if (threadIdx.x >= threads) return;
  asc_syncthreads();
}

__simt_vf__ __launch_bounds__(64) inline void waits_apart(bool good) {
  if (good || threadIdx.x < 32)
    asc_syncthreads();
  else
    asc_syncthreads();
}

__simt_vf__ __launch_bounds__(64) inline void shuffles_in_a_branch(Gm<float> out, bool good) {
  float value = float(threadIdx.x);
  if (threadIdx.x % 2 == 0) value = asc_shfl_xor(value, good ? 2 : 1);
  out[threadIdx.x] = value;
}

__simt_vf__ __launch_bounds__(64) inline void shuffles_with_the_gone(Gm<float> out, bool good) {
  if (!good && threadIdx.x % 32 == 31) return;
  out[threadIdx.x] = asc_shfl_down(float(threadIdx.x), 1);
}

__simt_vf__ __launch_bounds__(64) inline void shuffles_in_threes(Gm<float> out, bool good) {
  out[threadIdx.x] = asc_shfl(float(threadIdx.x), 1, good ? 4 : 3);
}

__simt_vf__ __launch_bounds__(64) inline void reads_fresh(Ub<int32_t> shared, Gm<float> out,
                                                          bool good) {
  if (good) shared[threadIdx.x] = 0;
  out[threadIdx.x] = float(int32_t(shared[threadIdx.x]));
}

__simt_vf__ __launch_bounds__(64) inline void goes_past(Gm<float> in, Gm<float> out, bool good) {
  out[threadIdx.x] = float(in[(good ? 4032 : 4033) + threadIdx.x]);
}

__simt_vf__ __launch_bounds__(64) inline void reads_what_was_copied(Gm<float> in, Gm<float> out,
                                                                    bool good) {
  const uint32_t i = threadIdx.x;
  out[64 + i] = good ? asc_ldcg(in + i) : float(in[i]);
}

__simt_vf__ __launch_bounds__(64) inline void nothing() {}

__simt_vf__ __launch_bounds__(64) inline void calls_again(bool good) {
  if (!good) asc_vf_call<nothing>(dim3(1));
}

__simt_vf__ __launch_bounds__(64) inline void copies(Ub<int32_t> from, Gm<float> out) {
  out[threadIdx.x] = float(int32_t(from[threadIdx.x]));
}

}  // namespace

SCENARIO(__vector__, 1, simt_read_without_barrier, "missing-synchronisation") {
  asc_vf_call<passes_on>(dim3(128), Space(512).ints(), y, fixed);
}
SCENARIO(__vector__, 1, simt_write_without_barrier, "missing-synchronisation") {
  asc_vf_call<writes_over>(dim3(128), Space(512).ints(), y, fixed);
}
SCENARIO(__vector__, 1, simt_count_without_atomic, "missing-synchronisation") {
  asc_vf_call<counts>(dim3(128), Space(512).ints(), fixed);
}
SCENARIO(__vector__, 1, simt_read_beside_atomics, "missing-synchronisation") {
  asc_vf_call<reads_a_counter>(dim3(128), Space(512).ints(), y, fixed);
}
SCENARIO(__vector__, 1, simt_two_threads_one_element, "missing-synchronisation") {
  asc_vf_call<shares_a_word>(dim3(128), Ub<int16_t>(Space(512).ints()), fixed);
}
SCENARIO(__vector__, 1, simt_two_threads_one_global_element, "missing-synchronisation") {
  asc_vf_call<shares_global>(dim3(128), y, fixed);
}
SCENARIO(__vector__, 1, simt_barrier_not_reached, "barrier-not-reached") {
  asc_vf_call<leaves_early>(dim3(64), fixed ? 64 : 63);
}
SCENARIO(__vector__, 1, simt_barriers_apart, "barrier-mismatch") {
  asc_vf_call<waits_apart>(dim3(64), fixed);
}
SCENARIO(__vector__, 1, simt_shuffle_in_a_branch, "inactive-lane") {
  asc_vf_call<shuffles_in_a_branch>(dim3(64), y, fixed);
}
SCENARIO(__vector__, 1, simt_shuffle_with_the_gone, "inactive-lane") {
  asc_vf_call<shuffles_with_the_gone>(dim3(64), y, fixed);
}
SCENARIO(__vector__, 1, simt_shuffle_in_threes, "undefined-result") {
  asc_vf_call<shuffles_in_threes>(dim3(64), y, fixed);
}
SCENARIO(__vector__, 1, simt_read_of_fresh_memory, "uninitialised-read") {
  asc_vf_call<reads_fresh>(dim3(64), Space(512).ints(), y, fixed);
}
SCENARIO(__vector__, 1, simt_read_past_the_tensor, "out-of-range") {
  asc_vf_call<goes_past>(dim3(64), x, y, fixed);
}
SCENARIO(__vector__, 1, simt_too_many_threads, "bad-thread-count") {
  asc_vf_call<nothing>(dim3(fixed ? 1024 : 1025, 2));
}
SCENARIO(__vector__, 1, simt_too_much_memory, "ub-overflow") {
  Space space(fixed ? 216 * 1024 : 216 * 1024 + 32);
  asc_vf_call<nothing>(dim3(64));
}
SCENARIO(__vector__, 1, simt_function_in_a_function, "nested-vector-function") {
  asc_vf_call<calls_again>(dim3(64), fixed);
}
SCENARIO(__vector__, 1, simt_variable_outside, "outside-vector-function") {
  if (!fixed) y[0] = float(uint32_t(threadIdx.x));
}
SCENARIO(__vector__, 1, simt_reads_before_the_copy, "missing-synchronisation") {
  TPipe pipe;
  TBuf<TPosition::VECCALC> buffer;
  pipe.InitBuffer(buffer, 256);
  GlobalTensor<float> from;
  from.SetGlobalBuffer(x);
  DataCopy(buffer.Get<float>(), from, 64);
  if (fixed) PipeBarrier<PIPE_ALL>();
  asc_vf_call<copies>(dim3(64), buffer.Get<int32_t>().GetPhyAddr(), y);
}
SCENARIO(__vector__, 1, scalar_read_through_a_stale_cache, "stale-read") {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, 64);
  GlobalTensor<float> from, to;
  from.SetGlobalBuffer(x, 4096);
  to.SetGlobalBuffer(y, 4096);
  DataCopy(tensor, from, 64);
  PipeBarrier<PIPE_ALL>();
  DataCopy(to, tensor, 64);
  PipeBarrier<PIPE_ALL>();
  const float value = y[fixed ? 64 : 63];
  if (value == 1.0f) PipeBarrier<PIPE_ALL>();
}
SCENARIO(__vector__, 1, scalar_store_to_global_memory, "not-modelled") {
  if (!fixed) y[0] = 1.0f;
}
SCENARIO(__vector__, 1, copy_of_what_threads_stored, "stale-read") {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, 64);
  GlobalTensor<float> from;
  from.SetGlobalBuffer(y, 4096);
  asc_vf_call<stores_ones>(dim3(64), y);
  PipeBarrier<PIPE_ALL>();
  DataCopy(tensor, from[fixed ? 64 : 32], 64);
}
SCENARIO(__vector__, 1, copy_over_what_threads_stored, "missing-synchronisation") {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, 64);
  GlobalTensor<float> to;
  to.SetGlobalBuffer(y, 4096);
  Duplicate(tensor, 1.0f, 64);
  asc_vf_call<stores_ones>(dim3(64), y);
  PipeBarrier<PIPE_ALL>();
  DataCopy(to[fixed ? 64 : 32], tensor, 64);
}
SCENARIO(__vector__, 1, simt_read_through_a_stale_cache, "stale-read") {
  TPipe pipe;
  TBuf<TPosition::VECCALC> buffer;
  pipe.InitBuffer(buffer, 256);
  GlobalTensor<float> from, to;
  from.SetGlobalBuffer(x);
  to.SetGlobalBuffer(y);
  DataCopy(buffer.Get<float>(), from, 64);
  PipeBarrier<PIPE_ALL>();
  DataCopy(to, buffer.Get<float>(), 64);
  PipeBarrier<PIPE_ALL>();
  asc_vf_call<reads_what_was_copied>(dim3(64), y, y, fixed);
}

// The SIMT API: how a function is called, the built-in variables, barriers and fences.
//
// Written from the pages "核函数配置", "内置变量", "asc_syncthreads", "asc_threadfence" and
// "asc_threadfence_block".
#pragma once

#include <cstring>
#include <type_traits>

#include "simt_threads.h"
#include "vector_function.h"

namespace tandem::emulation {

// A component of a built-in variable: read where it is used, and only inside of a SIMT function.
template <uint32_t (*read)()>
struct BuiltIn {
  operator uint32_t() const { return read(); }
};

template <uint32_t (*read_x)(), uint32_t (*read_y)(), uint32_t (*read_z)()>
struct BuiltInDim {
  [[no_unique_address]] BuiltIn<read_x> x;
  [[no_unique_address]] BuiltIn<read_y> y;
  [[no_unique_address]] BuiltIn<read_z> z;
};

inline uint32_t thread_x() {
  const Threads &threads = simt_threads("threadIdx");
  return threads.number % threads.block.x;
}
inline uint32_t thread_y() {
  const Threads &threads = simt_threads("threadIdx");
  return threads.number / threads.block.x % threads.block.y;
}
inline uint32_t thread_z() {
  const Threads &threads = simt_threads("threadIdx");
  return threads.number / threads.block.x / threads.block.y;
}
inline uint32_t block_size_x() { return simt_threads("blockDim").block.x; }
inline uint32_t block_size_y() { return simt_threads("blockDim").block.y; }
inline uint32_t block_size_z() { return simt_threads("blockDim").block.z; }
inline uint32_t block_x() { return simt_threads("blockIdx"), uint32_t(block_index()); }
inline uint32_t grid_x() { return simt_threads("gridDim"), uint32_t(block_count()); }
inline uint32_t zero() { return 0; }
inline uint32_t one() { return 1; }

// Arguments go to a vector function by value: pointers into GM and UB, and plain numbers.
template <typename... A>
constexpr void check_arguments() {
  static_assert((std::is_trivially_copyable_v<std::decay_t<A>> && ...),
                "vector functions take plain numbers and pointers into GM and UB");
}

}  // namespace tandem::emulation

inline constexpr tandem::emulation::BuiltInDim<
    tandem::emulation::thread_x, tandem::emulation::thread_y, tandem::emulation::thread_z>
    threadIdx;
inline constexpr tandem::emulation::BuiltInDim<tandem::emulation::block_size_x,
                                               tandem::emulation::block_size_y,
                                               tandem::emulation::block_size_z>
    blockDim;
inline constexpr tandem::emulation::BuiltInDim<tandem::emulation::block_x, tandem::emulation::zero,
                                               tandem::emulation::zero>
    blockIdx;
inline constexpr tandem::emulation::BuiltInDim<tandem::emulation::grid_x, tandem::emulation::one,
                                               tandem::emulation::one>
    gridDim;
inline constexpr int32_t warpSize = 32;

// Start a SIMT function with so many threads.
template <auto function, typename... A>
void asc_vf_call(dim3 threads, A &&...arguments) {
  tandem::emulation::check_arguments<A...>();
  auto body = [&] { function(arguments...); };
  tandem::emulation::run_simt(
      threads, [](void *context) { (*static_cast<decltype(body) *>(context))(); }, &body);
}

// Start a register-level function.
template <auto function, typename... A>
  requires(sizeof...(A) == 0 || !(std::is_same_v<std::remove_cvref_t<A>, dim3> || ...))
void asc_vf_call(A &&...arguments) {
  tandem::emulation::check_arguments<A...>();
  tandem::emulation::RunningVectorFunction running;
  function(arguments...);
  running.finish();
}

// All threads of the block wait here for one another; what they did before is visible to all after
// it.
inline void asc_syncthreads(const std::source_location &where = std::source_location::current()) {
  tandem::emulation::wait_for_block(tandem::emulation::site_of(where));
}

// What this thread wrote before comes, for others, before what it writes after. Accesses are
// visible at once here, and only a barrier tells a thread that another one has come so far.
inline void asc_threadfence() { tandem::emulation::simt_threads("asc_threadfence"); }
inline void asc_threadfence_block() { tandem::emulation::simt_threads("asc_threadfence_block"); }

// An element of global memory past the data cache of the threads, which other cores and pipes may
// have written in this launch. It must still be ordered after them.
template <typename T>
T asc_ldcg(const Gm<T> &address) {
  using namespace tandem::emulation;
  static constexpr Operand kOperand{"asc_ldcg", Access::read, PIPE_V, alignof(T)};
  simt_threads("asc_ldcg");
  T value;
  std::memcpy(&value, touch(address.place(), sizeof(T), kOperand), sizeof(T));
  observe_element(Space::GM, uint64_t(address.place().position()), sizeof(T), Touch::fresh_read);
  return value;
}

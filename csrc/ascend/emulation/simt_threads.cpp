#include "simt_threads.h"

#include <cstdio>
#include <vector>

#include "global_memory.h"
#include "vector_function.h"

namespace tandem::emulation {

namespace {

// All threads of one call. Only one call runs at a time: no thread waits for another core.
class ThreadBlock final : public FiberGroup {
 public:
  ThreadBlock(const dim3 &size, void (*body)(void *), void *context)
      : body_(body), context_(context), threads_(size.x * size.y * size.z) {
    state_.block = size;
  }

  void run(uint32_t index) override {
    body_(context_);
    end_thread(index);
  }
  void enter(uint32_t index) override { state_.number = index; }
  void describe(uint32_t index, char *text, uint32_t bytes) const override {
    std::snprintf(text, bytes, "SIMT thread %u", index);
  }

  Threads &state() { return state_; }
  Thread &current() { return threads_[state_.number]; }
  uint32_t count() const { return uint32_t(threads_.size()); }

  void wait_for_block(const Site &site);
  const Thread &meet_warp(const char *what, WarpFunction function, const Site &site, uint64_t value,
                          uint32_t argument, uint32_t width);

 private:
  void (*body_)(void *);
  void *context_;
  std::vector<Thread> threads_;
  Threads &state_ = shared_state();
  uint32_t arrived_ = 0, ended_ = 0;
  Site barrier_;

  static Threads &shared_state() {
    static Threads state;  // its record of accesses is large, and kept from call to call
    return state;
  }

  void end_thread(uint32_t index);
  void resolve_warp(uint32_t index);
};

ThreadBlock *block = nullptr;

// A barrier is for all threads of the block, and one that has ended will not come.
[[noreturn]] void fail_unreached(uint32_t arrived, uint32_t ended) {
  fail("barrier-not-reached", "let every thread of the block reach every asc_syncthreads",
       "%u threads wait at asc_syncthreads, and %u have ended without it", arrived, ended);
}

void ThreadBlock::end_thread(uint32_t index) {
  Thread &thread = threads_[index];
  thread.state = Thread::ended;
  ++ended_;
  if (arrived_ != 0) fail_unreached(arrived_, ended_);
  resolve_warp(index);
}

void ThreadBlock::wait_for_block(const Site &site) {
  const uint32_t index = state_.number;
  Thread &thread = threads_[index];
  if (ended_ != 0) fail_unreached(arrived_ + 1, ended_);
  if (arrived_ == 0)
    barrier_ = site;
  else if (!(barrier_ == site))
    fail("barrier-mismatch", "let all threads of the block wait at the same asc_syncthreads",
         "threads of a block wait at different asc_syncthreads, in lines %u and %u", barrier_.line,
         site.line);
  if (++arrived_ == count()) {
    arrived_ = 0;
    state_.races.next_part();
    for (Thread &other : threads_) other.state = Thread::running;
    return;
  }
  thread.state = Thread::at_barrier;
  resolve_warp(index);
  wait_until(
      [](const void *waits) {
        return static_cast<const Thread *>(waits)->state == Thread::running;
      },
      &thread, "asc_syncthreads");
}

// Once no lane of a warp can go on by itself, the lanes that wait at one place are the active ones
// there.
void ThreadBlock::resolve_warp(uint32_t index) {
  const uint32_t first = index / kWarp * kWarp;
  const uint32_t last = first + kWarp < count() ? first + kWarp : count();
  const Thread *leader = nullptr;
  for (uint32_t i = first; i < last; ++i) {
    if (threads_[i].state == Thread::running) return;
    if (threads_[i].state == Thread::in_warp && leader == nullptr) leader = &threads_[i];
  }
  if (leader == nullptr) return;
  WarpCall call{{}, 0};
  const Site site = leader->site;
  for (uint32_t i = first; i < last; ++i) {
    Thread &thread = threads_[i];
    if (thread.state != Thread::in_warp || !(thread.site == site)) continue;
    call.lanes[i - first] = &thread;
    call.active |= 1u << (i - first);
  }
  leader->function(call);
  for (uint32_t lane = 0; lane < kWarp; ++lane)
    if ((call.active >> lane) & 1) call.lanes[lane]->state = Thread::running;
}

const Thread &ThreadBlock::meet_warp(const char *what, WarpFunction function, const Site &site,
                                     uint64_t value, uint32_t argument, uint32_t width) {
  const uint32_t index = state_.number;
  Thread &thread = threads_[index];
  thread.site = site;
  thread.value = value;
  thread.argument = argument;
  thread.width = width;
  thread.function = function;
  thread.state = Thread::in_warp;
  resolve_warp(index);
  if (thread.state != Thread::running)
    wait_until(
        [](const void *waits) {
          return static_cast<const Thread *>(waits)->state == Thread::running;
        },
        &thread, what);
  return thread;
}

// Sets what runs, and puts it back however the function ends.
class RunningBlock {
 public:
  explicit RunningBlock(ThreadBlock &threads) {
    block = &threads;
    begin_vector_function();
    threads.state().races.begin_function();
  }
  ~RunningBlock() {
    block = nullptr;
    end_vector_function();
  }
  RunningBlock(const RunningBlock &) = delete;
  RunningBlock &operator=(const RunningBlock &) = delete;
};

}  // namespace

bool simt_running() { return block != nullptr; }

Threads &simt_threads(const char *what) {
  if (block == nullptr)
    fail("outside-vector-function",
         "call it from a __simt_vf__ function started by asc_vf_call with a dim3",
         "%s is used where no SIMT function runs", what);
  return block->state();
}

void run_simt(const dim3 &threads, void (*body)(void *context), void *context) {
  const uint64_t count = uint64_t(threads.x) * threads.y * threads.z;
  if (core().type != CoreType::vector)
    fail("wrong-core", "call vector functions on vector cores only",
         "a SIMT function starts on a cube core");
  if (block != nullptr || vector_function.running)
    fail("nested-vector-function", "call a __simt_callee__ function instead",
         "a vector function calls another one");
  if (count == 0 || count > kMostThreads)
    fail("bad-thread-count", "use 1 to 2048 threads", "a SIMT function starts with %llu threads",
         static_cast<unsigned long long>(count));
  if (core().ub_top > declared_ub)
    fail(
        "ub-overflow",
        "start the kernel with TANDEM_LAUNCH_UB and the bytes that its buffers reach to",
        "a SIMT function starts while buffers reach to byte %u of UB; the launch asked for %u, and "
        "the rest is for the data cache",
        core().ub_top, declared_ub);
  ThreadBlock group(threads, body, context);
  RunningBlock running(group);
  run_fibers(group, group.count(), kThreadStack);
}

void wait_for_block(const Site &site) {
  simt_threads("asc_syncthreads");
  block->wait_for_block(site);
}

const Thread &meet_warp(const char *what, WarpFunction function, const Site &site, uint64_t value,
                        uint32_t argument, uint32_t width) {
  simt_threads(what);
  return block->meet_warp(what, function, site, value, argument, width);
}

namespace {

// Reads of global memory go through the data cache of the core's threads, which nothing keeps up to
// date within a launch: what other cores and pipes write meanwhile may not be seen.
void check_fresh(uint64_t address) {
  const GlobalRange *range = find_global(address, 1);
  const uint32_t epoch = range->shadow.last_write(address - range->base);
  if (epoch_stamp(epoch) < begin_epochs()) return;  // before this launch
  if (epoch_agent(epoch) == core().agent(PIPE_V).index) return;
  fail("stale-read", "read it with asc_ldcg, or in another launch",
       "SIMT thread %u reads global memory at %#llx, which pipe %s of another core or of this one "
       "wrote in the same launch, through a cache that may hold what stood there before",
       block->state().number, static_cast<unsigned long long>(address),
       pipe_name(static_cast<pipe_t>(epoch_agent(epoch) % kPipes)));
}

}  // namespace

// An element access p[i] inside of a vector function, after its bytes were checked.
void observe_element(Space space, uint64_t address, uint32_t bytes, Touch touch) {
  if (block == nullptr)
    fail("not-modelled", "load it into a register, or pass it to the function",
         "an element access in a register-level vector function");
  if (space == Space::GM && touch == Touch::read) check_fresh(address);
  // Offsets into local memory lie far below any host address.
  Threads &state = block->state();
  const uint32_t other = state.races.touch(address, bytes, touch, uint16_t(state.number));
  if (other == SimtRaces::kNobody) return;
  char who[32] = "several threads";
  if (other != SimtRaces::kSeveral) std::snprintf(who, sizeof who, "thread %u", other);
  fail("missing-synchronisation", "put asc_syncthreads between the two, or use atomics for both",
       "SIMT thread %u %s %s[%llu, %llu), which %s touched since the last barrier", state.number,
       touch == Touch::write    ? "writes"
       : touch == Touch::atomic ? "atomically updates"
                                : "reads",
       space_name(space), static_cast<unsigned long long>(address),
       static_cast<unsigned long long>(address + bytes), who);
}

}  // namespace tandem::emulation

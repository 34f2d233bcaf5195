#include "fiber.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <vector>

#include "fault.h"

// Save the registers that a call keeps on this stack, store its pointer, and go on with another
// stack.
extern "C" void tandem_switch_stack(void **save, void *load);

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.hidden tandem_switch_stack
.globl tandem_switch_stack
.type tandem_switch_stack, @function
tandem_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tandem_switch_stack, .-tandem_switch_stack
)");
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.hidden tandem_switch_stack
.globl tandem_switch_stack
.type tandem_switch_stack, @function
tandem_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size tandem_switch_stack, .-tandem_switch_stack
)");
#else
#error "fibers are written for x86-64 and aarch64"
#endif

namespace tandem::emulation {

namespace {

constexpr size_t kGuard = 4096;

// Memory of a stack, with a page below it that must not be touched.
class Stack {
 public:
  explicit Stack(size_t bytes) : bytes_(bytes + kGuard) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED || mprotect(memory_, kGuard, PROT_NONE) != 0) {
      std::fprintf(stderr, "tandem: no memory for the stack of an emulated thread\n");
      std::abort();
    }
  }
  Stack(const Stack &) = delete;
  ~Stack() { munmap(memory_, bytes_); }

  void *top() const { return static_cast<char *>(memory_) + bytes_; }
  size_t usable() const { return bytes_ - kGuard; }

 private:
  void *memory_;
  size_t bytes_;
};

// Stacks that no fiber uses; a size is used for cores, another for threads.
std::vector<std::unique_ptr<Stack>> idle;

std::unique_ptr<Stack> take_stack(size_t bytes) {
  for (size_t i = idle.size(); i-- > 0;) {
    if (idle[i]->usable() != bytes) continue;
    std::unique_ptr<Stack> stack = std::move(idle[i]);
    idle[i] = std::move(idle.back());
    idle.pop_back();
    return stack;
  }
  return std::make_unique<Stack>(bytes);
}

struct Fiber {
  enum : uint8_t { fresh, waiting, done } state = fresh;
  std::unique_ptr<Stack> stack;
  void *stack_pointer = nullptr;
  bool (*ready)(const void *) = nullptr;
  const void *context = nullptr;
  const char *what = nullptr;
};

// A group while it runs. The scheduler is the code that called run_fibers, on its own stack.
struct Run {
  FiberGroup &group;
  uint32_t stack_bytes;
  std::vector<Fiber> fibers;
  uint32_t index = 0;  // of the fiber that runs
  void *scheduler = nullptr;
  Run *outer = nullptr;
  bool cancelled = false;
  std::exception_ptr failure;

  Fiber &now() { return fibers[index]; }
};

Run *running = nullptr;

// The first frame of a fiber. Nothing may leave it by an exception, and it does not return.
[[noreturn]] void first_frame() {
  Run *run = running;
  try {
    run->group.run(run->index);
  } catch (const Cancelled &) {
  } catch (...) {
    if (!run->failure) run->failure = std::current_exception();
    run->cancelled = true;
  }
  run->now().state = Fiber::done;
  tandem_switch_stack(&run->now().stack_pointer, run->scheduler);
  std::abort();
}

// Make a stack look as if first_frame had been about to start when it was switched away.
void *prepare(const Stack &stack) {
  void **top = static_cast<void **>(stack.top());
#if defined(__x86_64__)
  *--top = nullptr;  // where first_frame would return to; also makes its frame aligned
  *--top = reinterpret_cast<void *>(&first_frame);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
#else
  top -= 20;
  for (int i = 0; i < 20; ++i) top[i] = nullptr;
  top[11] = reinterpret_cast<void *>(&first_frame);
#endif
  return top;
}

void go_on(Run &run, uint32_t index) {
  run.index = index;
  Fiber &fiber = run.now();
  if (fiber.state == Fiber::fresh) {
    fiber.stack = take_stack(run.stack_bytes);
    fiber.stack_pointer = prepare(*fiber.stack);
  }
  run.group.enter(index);
  running = &run;
  tandem_switch_stack(&run.scheduler, fiber.stack_pointer);
  running = run.outer;
  run.group.leave();
  if (fiber.state == Fiber::done) idle.push_back(std::move(fiber.stack));
}

[[noreturn]] void fail_deadlock(const Run &run) {
  char text[700];
  size_t used = 0;
  uint32_t waiting = 0;
  for (uint32_t i = 0; i < run.fibers.size(); ++i) {
    if (run.fibers[i].state == Fiber::done || ++waiting > 6) continue;
    char who[64];
    run.group.describe(i, who, sizeof who);
    used += static_cast<size_t>(std::snprintf(text + used, sizeof text - used, "%s%s waits for %s",
                                              used ? ", " : "", who, run.fibers[i].what));
  }
  fail("deadlock", "let each of these be signalled on every path through the kernel",
       "%u wait for what never comes: %s%s", waiting, text, waiting > 6 ? ", ..." : "");
}

}  // namespace

void run_fibers(FiberGroup &group, uint32_t count, uint32_t stack_bytes) {
  Run run{group, stack_bytes, std::vector<Fiber>(count), 0, nullptr, running, false, nullptr};
  uint32_t left = count;
  while (left > 0) {
    bool moved = false;
    for (uint32_t i = 0; i < count; ++i) {
      Fiber &fiber = run.fibers[i];
      if (fiber.state == Fiber::done) continue;
      if (run.cancelled && fiber.state == Fiber::fresh) {
        fiber.state = Fiber::done;
        --left;
        continue;
      }
      if (fiber.state == Fiber::waiting && !run.cancelled && !fiber.ready(fiber.context)) continue;
      go_on(run, i);
      moved = true;
      if (fiber.state == Fiber::done) --left;
    }
    if (moved || left == 0) continue;
    try {
      fail_deadlock(run);
    } catch (...) {
      run.failure = std::current_exception();
      run.cancelled = true;
    }
  }
  if (run.failure) std::rethrow_exception(run.failure);
}

void wait_until(bool (*ready)(const void *context), const void *context, const char *what) {
  if (ready(context)) return;
  Run &run = *running;
  Fiber &fiber = run.now();
  fiber.state = Fiber::waiting;
  fiber.ready = ready;
  fiber.context = context;
  fiber.what = what;
  tandem_switch_stack(&fiber.stack_pointer, run.scheduler);
  if (run.cancelled) throw Cancelled{};
}

}  // namespace tandem::emulation

#include "cores.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "../../include/tandem_ascend.h"
#include "counts.h"
#include "fault.h"
#include "fiber.h"
#include "global_memory.h"

// Kernels lie in sections by kind, which the linker bounds with these names.
#define TANDEM_SECTION(kind)                                                                      \
  extern "C" [[gnu::weak, gnu::visibility("hidden")]] const char __start_tandem_kernels_##kind[], \
      __stop_tandem_kernels_##kind[];                                                             \
  static_assert(true)

TANDEM_SECTION(vector);
TANDEM_SECTION(cube);
TANDEM_SECTION(mix_0_1);
TANDEM_SECTION(mix_1_0);
TANDEM_SECTION(mix_1_1);
TANDEM_SECTION(mix_1_2);

namespace tandem::emulation {

Core *current_core = nullptr;
Launch *current_launch = nullptr;

namespace {

constexpr uint32_t kStackBytes = 1 << 20;
constexpr uint32_t kSizes[] = {248 << 10, 512 << 10, 64 << 10, 64 << 10, 256 << 10,
                               4 << 10,   4 << 10,   4 << 10,  4 << 10};
static_assert(sizeof kSizes / sizeof kSizes[0] == kLocalSpaces);

struct Machine {
  Core cores[kCores];
  Machine();
};

// Which memories a core has: UB belongs to vector cores, all others to cube cores.
bool has_memory(CoreType type, Space space) {
  return (space == Space::UB) == (type == CoreType::vector);
}

Machine::Machine() {
  for (int i = 0; i < kCores; ++i) {
    Core &one = cores[i];
    std::memset(static_cast<void *>(&one), 0, sizeof one);
    one.type = i < kCubeCores ? CoreType::cube : CoreType::vector;
    one.index = static_cast<uint8_t>(i);
    for (int space = 1; space <= kLocalSpaces; ++space) {
      if (!has_memory(one.type, static_cast<Space>(space))) continue;
      Memory &memory = one.memory(static_cast<Space>(space));
      memory.size = kSizes[space - 1];
      memory.bytes = static_cast<uint8_t *>(std::aligned_alloc(4096, memory.size));
      memory.shadow.create(memory.size, false);
    }
    for (int pipe = 0; pipe < kPipes; ++pipe) {
      one.agents[pipe].index = static_cast<uint8_t>(i * kPipes + pipe);
      one.agents[pipe].in_order = pipe == PIPE_S || pipe == PIPE_V;
    }
  }
}

Machine &machine() {
  static Machine *const made = new Machine;
  return *made;
}

void reset_core(Core &one, uint32_t first_stamp) {
  for (Memory &memory : one.memories) {
    if (memory.size == 0) continue;
    std::memset(memory.bytes, 0xFF, memory.size);
    memory.shadow.reset();
  }
  for (Agent &agent : one.agents) {
    for (uint32_t &time : agent.seen.complete) time = first_stamp - 1;
    agent.now = first_stamp;
  }
  for (auto &from : one.flags)
    for (auto &to : from)
      for (Flag &flag : to) flag.set = false;
  for (auto &set : one.cross_flags)
    for (CrossFlag &flag : set) flag.count = 0;
  for (auto &set : one.cross_sets)
    for (CrossFlag &flag : set) flag.count = 0;
  one.ub_top = 0;
  one.atomic = 0;
  one.control = kControlDefault;
  one.pipe = nullptr;
  one.late_fault = nullptr;
  one.element_pipe = PIPE_S;
}

// Of a launch, whose stamps start with `first`.
uint32_t highest_stamp(uint32_t first) {
  uint32_t highest = first;
  for (const Core &one : machine().cores)
    for (const Agent &agent : one.agents)
      if (one.block != nullptr && agent.now > highest) highest = agent.now;
  return highest;
}

// The cores of a launch, each a fiber.
class CoreGroup final : public FiberGroup {
 public:
  CoreGroup(void (*body)(void *), void *context) : body_(body), context_(context) {}

  void add(Core *one) { cores_[count_++] = one; }
  uint32_t count() const { return count_; }
  Core &at(uint32_t index) { return *cores_[index]; }

  void run(uint32_t) override {
    body_(context_);
    check_end(core());
  }
  void enter(uint32_t index) override { current_core = cores_[index]; }
  void leave() override { current_core = nullptr; }
  void describe(uint32_t index, char *text, uint32_t bytes) const override {
    describe_core(*cores_[index], text, bytes);
  }

 private:
  void (*body_)(void *);
  void *context_;
  Core *cores_[kCores];
  uint32_t count_ = 0;

  static void check_end(const Core &one);
};

// What must not be left over when a core ends.
void CoreGroup::check_end(const Core &one) {
  if (one.late_fault != nullptr)
    fail(one.late_fault, "take out of a queue what was put into it",
         "a queue is destroyed while tensors are in it");
  for (int from = 0; from < kPipes; ++from)
    for (int to = 0; to < kPipes; ++to)
      for (int id = 0; id < kFlags; ++id)
        if (one.flags[from][to][id].set)
          fail("flag-unbalanced", "wait for every flag that is set",
               "flag %s_%s of id %d is still set at the end", pipe_name(static_cast<pipe_t>(from)),
               pipe_name(static_cast<pipe_t>(to)), id);
}

// A counter above zero after all cores have ended would let a later kernel pass its wait.
void check_cross_flags() {
  for (Core &one : machine().cores) {
    if (one.block == nullptr) continue;
    current_core = &one;
    for (int set = 0; set < 2; ++set)
      for (int id = 0; id < kCrossFlags; ++id)
        if (one.cross_flags[set][id].count > 0)
          fail("flag-unbalanced", "wait for every cross-core flag that is set",
               "cross-core flag %d counts %u at the end", id, one.cross_flags[set][id].count);
    for (int mode = 0; mode < 3; ++mode)
      for (int id = 0; id < kCrossFlags; ++id)
        if (one.cross_sets[mode][id].count > 0)
          fail("flag-unbalanced", "let all cores of the mode set the flag",
               "cross-core flag %d of mode %d was set by this core and not by all", id, mode);
  }
}

bool in_section(const void *kernel, const char *start, const char *stop) {
  const char *at = static_cast<const char *>(kernel);
  return start <= at && at < stop;
}

bool find_kind(const void *kernel, Kind *kind) {
  const struct {
    const char *start, *stop;
    Kind kind;
  } sections[] = {{__start_tandem_kernels_vector, __stop_tandem_kernels_vector, Kind::vector},
                  {__start_tandem_kernels_cube, __stop_tandem_kernels_cube, Kind::cube},
                  {__start_tandem_kernels_mix_0_1, __stop_tandem_kernels_mix_0_1, Kind::mix_0_1},
                  {__start_tandem_kernels_mix_1_0, __stop_tandem_kernels_mix_1_0, Kind::mix_1_0},
                  {__start_tandem_kernels_mix_1_1, __stop_tandem_kernels_mix_1_1, Kind::mix_1_1},
                  {__start_tandem_kernels_mix_1_2, __stop_tandem_kernels_mix_1_2, Kind::mix_1_2}};
  for (const auto &section : sections) {
    if (!in_section(kernel, section.start, section.stop)) continue;
    *kind = section.kind;
    return true;
  }
  return false;
}

// Give the blocks their cores, in a fixed order: of each block the cube core first.
void place_blocks(Launch &launch, CoreGroup &group) {
  const bool cube = launch.kind != Kind::vector && launch.kind != Kind::mix_0_1;
  const uint32_t vectors = launch.kind == Kind::mix_1_2                                ? 2
                           : launch.kind == Kind::cube || launch.kind == Kind::mix_1_0 ? 0
                                                                                       : 1;
  const uint32_t most = cube ? kCubeCores : kVectorCores;
  if (launch.blocks < 1 || launch.blocks > most)
    fail("launch-misuse",
         "start as many blocks as there are cores and let each loop over its share",
         "%u blocks of a kernel that has %u %s cores", launch.blocks, most,
         cube ? "cube" : "vector");
  for (uint32_t i = 0; i < launch.blocks; ++i) {
    Block &block = launch.all[i];
    block = {i, nullptr, {nullptr, nullptr}, vectors};
    if (cube) group.add(block.cube = &machine().cores[i]);
    for (uint32_t sub = 0; sub < vectors; ++sub) {
      Core &one = machine().cores[kCubeCores + i * vectors + sub];
      one.sub_block = static_cast<uint8_t>(sub);
      group.add(block.vector[sub] = &one);
    }
    if (cube) block.cube->block = &block;
    for (uint32_t sub = 0; sub < vectors; ++sub) block.vector[sub]->block = &block;
  }
}

void run_launch(Launch &launch, uint32_t first_stamp, const void *kernel, const char *name,
                void (*body)(void *), void *context) {
  if (!find_kind(kernel, &launch.kind))
    fail("launch-misuse", "qualify the kernel with __vector__, __cube__ or __mix__(cube, vector)",
         "%s does not say on which cores it runs", name);
  CoreGroup group(body, context);
  place_blocks(launch, group);
  for (uint32_t i = 0; i < group.count(); ++i) reset_core(group.at(i), first_stamp);
  run_fibers(group, group.count(), kStackBytes);
  check_cross_flags();
}

}  // namespace

Core &core_at(uint32_t index) { return machine().cores[index]; }

int64_t block_index() {
  const Block &block = *core().block;
  return core().type == CoreType::vector ? block.index * block.vector_cores + core().sub_block
                                         : block.index;
}

int64_t block_count() { return the_launch().blocks; }

int32_t launch(const void *kernel, const char *name, uint32_t blocks, void (*body)(void *context),
               void *context) {
  static std::mutex one_at_a_time;
  const std::lock_guard guard(one_at_a_time);
  // With new shadows nothing knows the sets of readers of earlier launches, which would pile up.
  const bool anew = global_changed() || epochs_exhausted();
  if (anew) forget_epochs();
  prepare_global(anew);
  const uint32_t first_stamp = begin_epochs();
  for (Core &one : machine().cores) one.block = nullptr;
  Launch launch{};
  launch.blocks = blocks;
  current_launch = &launch;
  int32_t status = TANDEM_OK;
  try {
    run_launch(launch, first_stamp, kernel, name, body, context);
  } catch (const Fault &fault) {
    remember_fault(fault);
    status = TANDEM_EMULATION_FAULT;
  }
  if (counting) count_launch(launch, status != TANDEM_OK);
  end_epochs(highest_stamp(first_stamp));
  current_core = nullptr;
  current_launch = nullptr;
  return status;
}

}  // namespace tandem::emulation

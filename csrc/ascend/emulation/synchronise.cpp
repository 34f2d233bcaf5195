// Order within a core and between cores.
#include "synchronise.h"

#include "cores.h"
#include "fault.h"
#include "fiber.h"

namespace tandem::emulation {

const char *pipe_name(pipe_t pipe) {
  static constexpr const char *kNames[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX", "ALL"};
  return kNames[pipe];
}

void fail_too_long() {
  fail("launch-too-long", "start several kernels",
       "a launch with more flags and barriers than the %u that this emulation can tell apart",
       kMostStamps);
}

void order(pipe_t from, pipe_t to) { core().agent(to).acquire(core().agent(from).release()); }

Clock release_all() {
  Clock all = core().agents[0].release();
  for (int pipe = 1; pipe < kPipes; ++pipe) all.join(core().agents[pipe].release());
  return all;
}

void acquire_all(const Clock &message) {
  for (Agent &agent : core().agents) agent.acquire(message);
}

void barrier(pipe_t pipe) {
  if (pipe == PIPE_ALL)
    acquire_all(release_all());
  else
    order(pipe, pipe);
}

void set_flag(pipe_t from, pipe_t to, int32_t id) {
  if (id < 0 || id >= kFlags)
    fail("bad-flag", "use ids 0 to 7", "flag %s_%s has no id %d", pipe_name(from), pipe_name(to),
         id);
  Flag &flag = core().flags[from][to][id];
  if (flag.set)
    fail("set-twice", "wait for the flag before it is set again",
         "flag %s_%s of id %d is set and was not waited for", pipe_name(from), pipe_name(to), id);
  flag.set = true;
  flag.message = core().agent(from).release();
}

void wait_flag(pipe_t from, pipe_t to, int32_t id) {
  if (id < 0 || id >= kFlags)
    fail("bad-flag", "use ids 0 to 7", "flag %s_%s has no id %d", pipe_name(from), pipe_name(to),
         id);
  Flag &flag = core().flags[from][to][id];
  if (!flag.set)
    fail("wait-without-set", "set the flag earlier in the program",
         "pipe %s waits for flag %s_%s of id %d for ever", pipe_name(to), pipe_name(from),
         pipe_name(to), id);
  flag.set = false;
  core().agent(to).acquire(flag.message);
}

namespace {

void require_mixed(const char *what) {
  if (!the_launch().mixed())
    fail("launch-misuse",
         "qualify the kernel with __mix__, for cores of one type __mix__(0, 1) or __mix__(1, 0)",
         "%s in a kernel of kind __vector__ or __cube__, for which no core signals another", what);
}

void check_cross_flag(uint8_t mode, uint16_t id) {
  constexpr uint16_t kMost = 15, kMostOfOne = 10, kSecond = 16;
  const bool second = mode == 4 && core().type == CoreType::cube && id >= kSecond;
  if (id - (second ? kSecond : 0) > (mode == 4 ? kMostOfOne : kMost))
    fail("bad-flag", "use ids 0 to 15; in mode 4 ids 0 to 10, on a cube core also 16 to 26",
         "there is no cross-core flag %u in mode %u", id, mode);
}

void count_up(Core &one, int set, uint32_t id, const Clock &message) {
  CrossFlag &flag = one.cross_flags[set][id];
  if (flag.count == kFlagCount)
    fail("cross-flag-overflow", "wait in between", "cross-core flag %u counts to %d at most", id,
         kFlagCount);
  flag.push(message);
}

// The cores that must all set a flag of modes 0 and 1, or as vector cores of mode 2, before anybody
// is told.
uint32_t partners(uint8_t mode, Core **found) {
  const Core &me = core();
  uint32_t count = 0;
  const auto add = [&](const Block &block) {
    if (me.type == CoreType::cube) {
      found[count++] = block.cube;
      return;
    }
    for (uint32_t sub = 0; sub < block.vector_cores; ++sub) found[count++] = block.vector[sub];
  };
  if (mode != 0) {
    add(*me.block);
    return count;
  }
  for (uint32_t i = 0; i < the_launch().blocks; ++i) add(the_launch().all[i]);
  return count;
}

// Modes 0 to 2: once all partners have set the flag, those who wait are told.
void set_with_partners(uint8_t mode, uint32_t id, const Clock &message) {
  Core &me = core();
  Block &block = *me.block;
  if (mode == 2 && me.type == CoreType::cube) {
    for (uint32_t sub = 0; sub < block.vector_cores; ++sub)
      count_up(*block.vector[sub], 0, id, message);
    return;
  }
  if (me.cross_sets[mode][id].count == kFlagCount)
    fail("cross-flag-overflow", "wait in between", "cross-core flag %u counts to %d at most", id,
         kFlagCount);
  me.cross_sets[mode][id].push(message);
  Core *all[kCores] = {};
  const uint32_t count = partners(mode, all);
  for (uint32_t i = 0; i < count; ++i)
    if (all[i]->cross_sets[mode][id].count == 0) return;
  Clock together = all[0]->cross_sets[mode][id].pop();
  for (uint32_t i = 1; i < count; ++i) together.join(all[i]->cross_sets[mode][id].pop());
  if (mode == 2) {
    count_up(*block.cube, 0, id, together);
    return;
  }
  for (uint32_t i = 0; i < count; ++i) count_up(*all[i], 0, id, together);
}

}  // namespace

void set_cross_flag(uint8_t mode, pipe_t pipe, uint16_t id) {
  require_mixed("CrossCoreSetFlag");
  Core &me = core();
  const Block &block = *me.block;
  if (mode != 0 &&
      (block.cube == nullptr || block.vector_cores == 0 || (mode == 4 && block.vector_cores != 2)))
    fail("launch-misuse", "use a mode that the kind of the kernel has",
         "mode %u needs cube and vector cores", mode);
  if (pipe == PIPE_ALL || (pipe == PIPE_S && mode != 4))
    fail("bad-flag", "name the pipe whose work is to be complete",
         "CrossCoreSetFlag takes no pipe %s", pipe_name(pipe));
  check_cross_flag(mode, id);
  const Clock message = me.agent(pipe).release();
  if (mode != 4)
    set_with_partners(mode, id, message);
  else if (me.type == CoreType::cube)
    count_up(*block.vector[id / 16], 1, id % 16, message);
  else
    count_up(*block.cube, 1, id + 16u * me.sub_block, message);
}

void wait_cross_flag(uint8_t mode, pipe_t pipe, uint16_t id) {
  require_mixed("CrossCoreWaitFlag");
  check_cross_flag(mode, id);
  CrossFlag &flag = core().cross_flags[mode == 4][id];
  wait_until([](const void *context) { return static_cast<const CrossFlag *>(context)->count > 0; },
             &flag, "a cross-core flag");
  const Clock &message = flag.pop();
  // The scalar unit issues all instructions, so while it waits nothing of any pipe starts.
  if (pipe == PIPE_S)
    acquire_all(message);
  else
    core().agent(pipe).acquire(message);
}

namespace {

constexpr uint32_t kSyncAllFlag = 11;  // 11 to 14 belong to it

// All pipes of all cores of the given type, or of both.
void meet(uint8_t mode, uint32_t id) {
  set_with_partners(mode, id, release_all());
  CrossFlag &flag = core().cross_flags[0][id];
  wait_until([](const void *context) { return static_cast<const CrossFlag *>(context)->count > 0; },
             &flag, "SyncAll");
  acquire_all(flag.pop());
}

}  // namespace

void sync_all(bool vector_only) {
  require_mixed("SyncAll");
  Block &block = *core().block;
  if (vector_only) {
    if (core().type == CoreType::vector) meet(0, kSyncAllFlag);
    return;
  }
  if (block.cube == nullptr || block.vector_cores == 0)
    fail("launch-misuse", "use SyncAll<true> where there are cores of one type only",
         "SyncAll<false> in a kernel without %s cores", block.cube == nullptr ? "cube" : "vector");
  // Vector cores report to their cube core, cube cores meet, and each tells its vector cores.
  const auto arrived = [](const void *context) {
    return static_cast<const CrossFlag *>(context)->count > 0;
  };
  CrossFlag &reports = core().cross_flags[0][kSyncAllFlag + 1];
  if (core().type == CoreType::vector) {
    set_with_partners(2, kSyncAllFlag + 1, release_all());
    wait_until(arrived, &reports, "SyncAll");
    acquire_all(reports.pop());
    return;
  }
  wait_until(arrived, &reports, "SyncAll");
  acquire_all(reports.pop());
  meet(0, kSyncAllFlag);
  set_with_partners(2, kSyncAllFlag + 1, release_all());
}

}  // namespace tandem::emulation

#include "memory.h"

#include <cstring>

#include "cores.h"
#include "counts.h"
#include "fault.h"
#include "global_memory.h"
#include "pointers.h"

namespace tandem::emulation {

namespace {

// How a missing order is put into the program.
const char *remedy(const Core &one, pipe_t pipe, const Core &other, pipe_t other_pipe) {
  if (&one != &other)
    return "order the cores by CrossCoreSetFlag and CrossCoreWaitFlag, or by SyncAll";
  if (pipe == other_pipe) return "put PipeBarrier of that pipe between the two";
  return "put SetFlag and WaitFlag of the two pipes, in that order, or a queue's EnQue and DeQue "
         "between them";
}

[[noreturn, gnu::cold]] void fail_conflict(const Core &owner, Space space, const Conflict &conflict,
                                           uint64_t address, uint64_t bytes,
                                           const Operand &operand) {
  const char *kind = operand.access == Access::write    ? "writes"
                     : operand.access == Access::atomic ? "atomically updates"
                                                        : "reads";
  if (conflict.kind == Conflict::unwritten)
    fail("uninitialised-read", "write these bytes first, or do not read them",
         "%s (pipe %s) %s %s[%llu, %llu), of which byte %llu was never written since the buffer "
         "was handed out",
         operand.what, pipe_name(operand.pipe), kind, space_name(space),
         static_cast<unsigned long long>(address), static_cast<unsigned long long>(address + bytes),
         static_cast<unsigned long long>(conflict.offset));
  const uint32_t agent = epoch_agent(conflict.epoch);
  const Core &other = core_at(agent / kPipes);
  const pipe_t other_pipe = static_cast<pipe_t>(agent % kPipes);
  const char *done = conflict.kind == Conflict::after_write  ? "wrote"
                     : conflict.kind == Conflict::after_read ? "read"
                                                             : "atomically updated";
  char who[64];
  describe_core(other, who, sizeof who);
  fail("missing-synchronisation", remedy(*current_core, operand.pipe, other, other_pipe),
       "%s (pipe %s) %s %s[%llu, %llu)%s, but byte %llu is what pipe %s of %s %s, and nothing "
       "orders the two",
       operand.what, pipe_name(operand.pipe), kind, space_name(space),
       static_cast<unsigned long long>(address), static_cast<unsigned long long>(address + bytes),
       &owner == current_core ? "" : " of another core",
       static_cast<unsigned long long>(conflict.offset), pipe_name(other_pipe), who, done);
}

[[noreturn, gnu::cold]] void fail_misaligned(Space space, uint64_t address,
                                             const Operand &operand) {
  fail("misaligned", "align the address as the instruction demands",
       "%s: %s address %llu is not a multiple of %u", operand.what, space_name(space),
       static_cast<unsigned long long>(address), operand.align);
}

[[noreturn, gnu::cold]] void fail_range(Space space, uint64_t address, uint64_t bytes,
                                        uint64_t size, const Operand &operand) {
  if (space == Space::GM)
    fail("out-of-range", "stay within the tensors that the kernel was given",
         "%s: global memory at %#llx, %llu bytes, does not lie within a registered tensor",
         operand.what, static_cast<unsigned long long>(address),
         static_cast<unsigned long long>(bytes));
  fail("out-of-range", "stay within the memory", "%s: %s[%llu, %llu) of %llu bytes", operand.what,
       space_name(space), static_cast<unsigned long long>(address),
       static_cast<unsigned long long>(address + bytes), static_cast<unsigned long long>(size));
}

// Pipes whose stores of the same launch a pipe does not see for certain, or may be overtaken by,
// whatever order flags give them: the scalar unit reads through a data cache that nobody keeps up
// to date, and stores of SIMT functions are complete for other pipes after a barrier of memory
// only.
uint32_t unseen_by(const Operand &operand) {
  constexpr uint32_t kThreads = 1u << PIPE_V, kAll = (1u << kPipes) - 1;
  if (operand.pipe == PIPE_S) return operand.access == Access::write ? 0 : kAll;
  const bool reads = operand.pipe == PIPE_MTE2 && operand.access != Access::write;
  const bool writes =
      (operand.pipe == PIPE_MTE3 || operand.pipe == PIPE_FIX) && operand.access == Access::write;
  return reads || writes ? kThreads : 0;
}

[[noreturn, gnu::cold]] void fail_unseen(uint64_t address, uint64_t bytes, uint32_t epoch,
                                         const Operand &operand) {
  fail(operand.access == Access::write ? "missing-synchronisation" : "stale-read",
       "end the kernel between the two and start another one",
       "%s (pipe %s) touches global memory at %#llx, %llu bytes, which pipe %s wrote in the same "
       "launch: a cache may hold what stood there before, or the store may not be there yet",
       operand.what, pipe_name(operand.pipe), static_cast<unsigned long long>(address),
       static_cast<unsigned long long>(bytes),
       pipe_name(static_cast<pipe_t>(epoch_agent(epoch) % kPipes)));
}

uint8_t *access_global(uint64_t address, uint64_t bytes, const Operand &operand) {
  if (bytes == 0) return reinterpret_cast<uint8_t *>(address);
  if (address % operand.align != 0) [[unlikely]]
    fail_misaligned(Space::GM, address, operand);
  GlobalRange *range = find_global(address, bytes);
  if (range == nullptr) [[unlikely]]
    fail_range(Space::GM, address, bytes, 0, operand);
  if (operand.pipe == PIPE_S && operand.access == Access::write) [[unlikely]]
    fail("not-modelled", "store from UB with DataCopyPad, or in a SIMT function",
         "%s: the scalar unit writes global memory, which stays in its data cache", operand.what);
  const uint32_t unseen = unseen_by(operand);
  const uint32_t stale =
      unseen == 0 ? 0
                  : range->shadow.write_since(address - range->base, bytes, begin_epochs(), unseen);
  Conflict conflict = range->shadow.access(address - range->base, bytes, operand.access,
                                           current_core->agents[operand.pipe], operand.in_order);
  if (conflict.kind != Conflict::none) [[unlikely]] {
    conflict.offset += range->base;
    fail_conflict(*current_core, Space::GM, conflict, address, bytes, operand);
  }
  if (stale != 0) [[unlikely]]
    fail_unseen(address, bytes, stale, operand);
  if (counting) [[unlikely]]
    count_access(Space::GM, address, bytes, operand.access);
  return reinterpret_cast<uint8_t *>(address);
}

}  // namespace

const char *space_name(Space space) {
  static constexpr const char *kNames[] = {"GM",  "UB", "L1", "L0A",    "L0B",
                                           "L0C", "BT", "FB", "L0A_MX", "L0B_MX"};
  return kNames[static_cast<int>(space)];
}

uint8_t *access_of(Core &owner, Space space, uint64_t address, uint64_t bytes,
                   const Operand &operand) {
  Memory &memory = owner.memory(space);
  if (address + bytes > memory.size || address + bytes < address) [[unlikely]]
    fail_range(space, address, bytes, memory.size, operand);
  if (address % operand.align != 0) [[unlikely]]
    fail_misaligned(space, address, operand);
  const Conflict conflict = memory.shadow.access(
      address, bytes, operand.access, current_core->agents[operand.pipe], operand.in_order);
  if (conflict.kind != Conflict::none) [[unlikely]]
    fail_conflict(owner, space, conflict, address, bytes, operand);
  if (counting) [[unlikely]]
    count_access(space, address, bytes, operand.access);
  return memory.bytes + address;
}

uint8_t *access(Space space, uint64_t address, uint64_t bytes, const Operand &operand) {
  if (space == Space::GM) return access_global(address, bytes, operand);
  return access_of(*current_core, space, address, bytes, operand);
}

bool is_written(Space space, uint64_t address, uint64_t bytes) {
  if (space == Space::GM) return true;
  const Memory &memory = current_core->memory(space);
  return address + bytes <= memory.size && memory.shadow.written(address, bytes);
}

void poison(Space space, uint64_t address, uint64_t bytes) {
  Memory &memory = current_core->memory(space);
  std::memset(memory.bytes + address, 0xFF, bytes);
  memory.shadow.poison(address, bytes);
}

void fail_outside(Space space, uint32_t offset, uint64_t bytes, uint32_t begin, uint32_t end,
                  const char *what) {
  if (end == 0)
    fail("out-of-range", "give the pointer a tensor to point into", "%s: a null pointer to %s",
         what, space_name(space));
  fail("out-of-range", "make the buffer as large as whole accesses need",
       "%s: %s[%u, %llu) leaves the buffer [%u, %u) that the pointer came from", what,
       space_name(space), offset, static_cast<unsigned long long>(offset + bytes), begin, end);
}

}  // namespace tandem::emulation

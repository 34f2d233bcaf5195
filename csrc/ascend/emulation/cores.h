// The cores of the emulated device and what a launch knows of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "clocks.h"
#include "memory.h"

namespace tandem::emulation {

constexpr int kCubeCores = 2;
constexpr int kVectorCores = 4;
constexpr int kFlags = 8;        // event ids of a pair of pipes
constexpr int kCrossFlags = 32;  // ids of cross-core flags, of mode 4 on a cube core
constexpr int kFlagCount = 15;   // what a cross-core flag counts to

enum class CoreType : uint8_t { cube, vector };

// A flag from one pipe to another: the clock of the setter while it is set.
struct Flag {
  bool set = false;
  Clock message;
};

// A cross-core flag: a counter with the clocks that came with each count, oldest first.
struct CrossFlag {
  uint32_t first = 0;
  uint32_t count = 0;
  Clock messages[kFlagCount];

  void push(const Clock &message) { messages[(first + count++) % kFlagCount] = message; }
  const Clock &pop() {
    const Clock &message = messages[first];
    first = (first + 1) % kFlagCount;
    --count;
    return message;
  }
};

// CTRL at the start of a kernel and after InitSocState: conversions saturate, all alike.
constexpr uint64_t kControlDefault = 1ull << 60;

struct Block;

struct Core {
  CoreType type;
  uint8_t index;      // among all cores, cube cores first
  uint8_t sub_block;  // of a vector core in its block
  Block *block;
  Memory memories[kLocalSpaces];
  Agent agents[kPipes];
  Flag flags[kPipes][kPipes][kFlags];     // [source][destination][id]
  CrossFlag cross_flags[2][kCrossFlags];  // [0: modes 0, 1, 2; 1: mode 4][id]
  CrossFlag cross_sets[3][kCrossFlags];   // [mode][id]: sets that wait for those of other cores
  uint32_t ub_top;                        // bytes of UB that tensors of this launch reach to
  uint8_t atomic;                         // SetAtomicAdd: an `Atomic` of copy.h
  uint64_t control;                       // CTRL, see control.h
  void *pipe;                             // the TPipe of the kernel
  const char *late_fault;                 // what a destructor found wrong, where it cannot throw
  pipe_t element_pipe;                    // of p[i]: PIPE_S, and PIPE_V inside of a vector function

  Memory &memory(Space space) { return memories[static_cast<int>(space) - 1]; }
  Agent &agent(pipe_t pipe) { return agents[pipe]; }
};

// A block of a launch: one vector core, one cube core, or a cube core with its vector cores.
struct Block {
  uint32_t index;
  Core *cube;
  Core *vector[2];
  uint32_t vector_cores;
};

// How a kernel is qualified: __vector__, __cube__ or __mix__(cube, vector).
enum class Kind : uint8_t { vector, cube, mix_0_1, mix_1_0, mix_1_1, mix_1_2 };

struct Launch {
  Kind kind;
  uint32_t blocks;
  Block all[kVectorCores];
  // Whether the scheduling unit that cross-core flags need is on: in every __mix__ kernel.
  bool mixed() const { return kind != Kind::vector && kind != Kind::cube; }
};

// What runs now; both are null outside of a launch.
extern Core *current_core;
extern Launch *current_launch;
inline Core &core() { return *current_core; }
inline Launch &the_launch() { return *current_launch; }

// A core by its index, and its name in texts: "AIV 1 of block 0".
Core &core_at(uint32_t index);
void describe_core(const Core &which, char *text, size_t bytes);

// GetBlockIdx: vector cores of a mixed kernel count block * 2 + sub block.
int64_t block_index();
int64_t block_count();

// Order within the current core: what `from` did up to here happens before what `to` does from here
// on.
void order(pipe_t from, pipe_t to);
// All pipes: PipeBarrier<PIPE_ALL>. One pipe: its earlier instructions are complete before its
// later ones.
void barrier(pipe_t pipe);

// The code of a vector function: p[i] is an access of PIPE_V meanwhile.
inline void begin_vector_function() { core().element_pipe = PIPE_V; }
inline void end_vector_function() { core().element_pipe = PIPE_S; }

// Run a kernel on `blocks` blocks; returns TANDEM_OK or TANDEM_EMULATION_FAULT. `kernel` is the
// address of the function, whose section says of what kind it is; `body(context)` calls it.
int32_t launch(const void *kernel, const char *name, uint32_t blocks, void (*body)(void *context),
               void *context);

}  // namespace tandem::emulation

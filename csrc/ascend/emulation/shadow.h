// Shadow of a memory: for every byte who wrote it last, who has read it since, and whether it was
// ever written.
//
// A cell holds 32 bytes where they share one history; where they do not, each byte has a cell of
// its own. Epochs are 32 bits: agent and stamp, with the top bits of a write saying "poison" and of
// a read "atomic" or "several".
#pragma once

#include <cstdint>

#include "clocks.h"

namespace tandem::emulation {

enum class Access : uint8_t {
  read,      // bytes must have been written
  read_any,  // bytes may never have been written: loads of whole registers, whose lanes are checked
             // where used
  write,
  atomic  // ordered among themselves, not with plain accesses
};

struct Cell {
  uint32_t write;
  uint32_t read;
};

// What stands in the way of an access.
struct Conflict {
  enum Kind : uint8_t { none, unwritten, after_write, after_read, after_atomic } kind;
  uint64_t offset;
  uint32_t epoch;
};

class Shadow {
 public:
  Shadow() = default;
  Shadow(const Shadow &) = delete;
  Shadow &operator=(const Shadow &) = delete;
  ~Shadow() { release(); }

  // `initialised`: bytes count as written before the launch (global memory).
  void create(uint64_t bytes, bool initialised);
  void release();
  // Nobody has written or read anything.
  void reset();

  // Check an access by `agent` and record it.
  Conflict access(uint64_t offset, uint64_t bytes, Access access, const Agent &agent,
                  bool in_order);

  // Bytes are unwritten again; who read and wrote them is kept.
  void poison(uint64_t offset, uint64_t bytes);

  // Whether all of these bytes were written.
  bool written(uint64_t offset, uint64_t bytes) const;

  // The first of these bytes' last writes that is no earlier than `stamp` and of one of `pipes`
  // (bits of any core's pipes), 0 where there is none.
  uint32_t write_since(uint64_t offset, uint64_t bytes, uint32_t stamp, uint32_t pipes) const;

  // The epoch in which a byte was last written, 0 where nobody has.
  uint32_t last_write(uint64_t offset) const;

 private:
  Cell *blocks_ = nullptr;
  Cell *bytes_ = nullptr;
  uint64_t size_ = 0;
  bool initialised_ = false;

  Cell *split(uint64_t block);
};

uint32_t epoch_agent(uint32_t epoch);
uint32_t epoch_stamp(uint32_t epoch);

// The first stamp of a launch: everything of earlier launches lies before it. `end_epochs` takes
// the highest stamp used.
uint32_t begin_epochs();
void end_epochs(uint32_t highest);
// Whether stamps or sets of readers run out: then call `forget_epochs` and create all shadows anew.
bool epochs_exhausted();
void forget_epochs();

}  // namespace tandem::emulation

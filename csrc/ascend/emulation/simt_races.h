// Data races between the threads of one SIMT function.
//
// Between two barriers (asc_syncthreads) nothing orders the threads of a block: what one of them
// writes, no other may read or write. Atomics of several threads go together; a plain access beside
// them does not. Memory fences do not help here: with them alone a thread never knows that another
// one has come so far.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "pointers.h"

namespace tandem::emulation {

class SimtRaces {
 public:
  // Another function, or the next part of one after a barrier.
  void next_part() { ++part_; }
  void begin_function();

  // An access by a thread. Returns kNobody, or another thread in whose way it is (kSeveral: more
  // than one).
  uint32_t touch(uint64_t address, uint32_t bytes, Touch touch, uint16_t thread);

  static constexpr uint32_t kNobody = 0x10000;
  static constexpr uint16_t kSeveral = 0xFFFF;

 private:
  struct Cell {
    uint32_t written = 0, seen = 0;  // in which part
    uint16_t writer = 0, reader = 0;
    bool by_atomic = false;
  };
  // Of kPage bytes: a cell for each four, or for each one where smaller elements were touched.
  struct Page {
    std::vector<Cell> cells;
    uint32_t shift = 2;
  };
  static constexpr uint32_t kPage = 4096;
  static constexpr size_t kMostPages = 32768;

  uint32_t part_ = 0;
  std::unordered_map<uint64_t, Page> pages_;
  uint64_t last_number_ = ~0ull;
  Page *last_ = nullptr;

  Page &page_at(uint64_t number);
  static void split(Page &page);
  uint32_t touch_cell(Cell &cell, Touch touch, uint16_t thread);
};

}  // namespace tandem::emulation

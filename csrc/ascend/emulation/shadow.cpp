#include "shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

namespace tandem::emulation {

namespace {

constexpr uint32_t kBlock = 32;
constexpr uint32_t kPoison = 1u << 31;   // of a write
constexpr uint32_t kSeveral = 1u << 31;  // of a read: the rest is the number of a set
constexpr uint32_t kAtomic = 1u << 30;   // of a read
constexpr uint32_t kSplit = ~0u;  // of the write of a block: its bytes have cells of their own
constexpr int kTimeBits = 23;
constexpr uint32_t kTime = kMostStamps;
static_assert(kTime == (1u << kTimeBits) - 1);
constexpr size_t kMostSets = 1 << 20;

uint32_t next_stamp = 1;

// Sets of epochs of readers, each once: a byte that several agents have read holds the number of a
// set.
using Readers = std::vector<uint32_t>;
std::vector<Readers> sets;
std::map<Readers, uint32_t> numbers;

struct Step {
  uint32_t set = 0, epoch = 0, result = 0;
};
Step steps[1024];  // what adding an epoch to a set gave, for the cases met last

uint32_t number_of(const Readers &readers) {
  const auto [place, fresh] = numbers.try_emplace(readers, static_cast<uint32_t>(sets.size()));
  if (fresh) sets.push_back(readers);
  return place->second | kSeveral;
}

// The check of one cell.
struct Check {
  const uint32_t *complete;
  uint32_t epoch;  // of this access
  uint32_t self;
  Access access;
  bool in_order;
  bool initialised;

  bool known(uint32_t epoch_of_other) const {
    const uint32_t agent = epoch_agent(epoch_of_other);
    return (in_order && agent == self) || complete[agent] >= (epoch_of_other & kTime);
  }
  uint32_t first_unknown(uint32_t read, bool atomics, bool plain) const;
  uint32_t with_reader(uint32_t read, bool atomic) const;
  bool update(Cell &cell, Conflict &conflict) const;
};

// The first epoch among the readers that this access may not overtake; 0 where there is none.
uint32_t Check::first_unknown(uint32_t read, bool atomics, bool plain) const {
  const auto stops = [&](uint32_t one) {
    return ((one & kAtomic) ? atomics : plain) && !known(one & ~kAtomic);
  };
  if (read == 0) return 0;
  if ((read & kSeveral) == 0) return stops(read) ? read : 0;
  for (const uint32_t one : sets[read & ~kSeveral])
    if (stops(one)) return one;
  return 0;
}

// The readers and this access. Plain readers that are known to be complete need no mention any
// more: whoever follows this access follows them.
uint32_t Check::with_reader(uint32_t read, bool atomic) const {
  const uint32_t mine = epoch | (atomic ? kAtomic : 0);
  if (read == 0 || read == mine) return mine;
  const auto dropped = [&](uint32_t one) {
    if (((one ^ mine) & kAtomic) != 0) return false;
    return epoch_agent(one & ~kAtomic) == self || (!atomic && known(one));
  };
  if ((read & kSeveral) == 0) {
    if (dropped(read)) return mine;
    return number_of(read < mine ? Readers{read, mine} : Readers{mine, read});
  }
  Step &step = steps[(read * 31 + mine) % 1024];
  if (step.set == read && step.epoch == mine) return step.result;
  Readers readers;
  for (const uint32_t one : sets[read & ~kSeveral])
    if (!dropped(one)) readers.push_back(one);
  const auto place = std::lower_bound(readers.begin(), readers.end(), mine);
  if (place == readers.end() || *place != mine) readers.insert(place, mine);
  const uint32_t result = readers.size() == 1 ? mine : number_of(readers);
  step = {read, mine, result};
  return result;
}

bool Check::update(Cell &cell, Conflict &conflict) const {
  const uint32_t write = cell.write & ~kPoison;
  if (access == Access::read || access == Access::atomic) {
    if ((cell.write & kPoison) != 0 || (cell.write == 0 && !initialised)) {
      conflict = {Conflict::unwritten, 0, write};
      return false;
    }
  }
  if (write != 0 && !known(write)) {
    conflict = {Conflict::after_write, 0, write};
    return false;
  }
  if (access == Access::write) {
    if (const uint32_t reader = first_unknown(cell.read, true, true)) {
      conflict = {reader & kAtomic ? Conflict::after_atomic : Conflict::after_read, 0,
                  reader & ~kAtomic};
      return false;
    }
    cell = {epoch, 0};
    return true;
  }
  const bool atomic = access == Access::atomic;
  if (cell.read != 0 && cell.read != epoch) {
    if (const uint32_t reader = first_unknown(cell.read, !atomic, atomic)) {
      conflict = {atomic ? Conflict::after_read : Conflict::after_atomic, 0, reader & ~kAtomic};
      return false;
    }
  }
  cell.read = with_reader(cell.read, atomic);
  return true;
}

Cell *map_cells(uint64_t count) {
  void *cells = mmap(nullptr, count * sizeof(Cell), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (cells == MAP_FAILED) {
    std::fprintf(stderr, "tandem: no address space for the shadow of emulated memory\n");
    std::abort();
  }
  return static_cast<Cell *>(cells);
}

}  // namespace

uint32_t epoch_agent(uint32_t epoch) { return (epoch >> kTimeBits) & 127; }

uint32_t epoch_stamp(uint32_t epoch) { return epoch & kTime; }

uint32_t begin_epochs() { return next_stamp; }
void end_epochs(uint32_t highest) { next_stamp = highest + 1; }
bool epochs_exhausted() { return next_stamp > kTime / 2 || sets.size() > kMostSets; }

void forget_epochs() {
  next_stamp = 1;
  sets.clear();
  numbers.clear();
  std::memset(static_cast<void *>(steps), 0, sizeof steps);
}

void Shadow::create(uint64_t bytes, bool initialised) {
  release();
  size_ = (bytes + kBlock - 1) / kBlock * kBlock;
  initialised_ = initialised;
  blocks_ = map_cells(size_ / kBlock);
  bytes_ = map_cells(size_);
}

void Shadow::release() {
  if (blocks_ == nullptr) return;
  munmap(blocks_, size_ / kBlock * sizeof(Cell));
  munmap(bytes_, size_ * sizeof(Cell));
  blocks_ = bytes_ = nullptr;
}

void Shadow::reset() {
  std::memset(static_cast<void *>(blocks_), 0, size_ / kBlock * sizeof(Cell));
}

Cell *Shadow::split(uint64_t block) {
  Cell *bytes = bytes_ + block * kBlock;
  if (blocks_[block].write != kSplit) {
    for (uint32_t i = 0; i < kBlock; ++i) bytes[i] = blocks_[block];
    blocks_[block].write = kSplit;
  }
  return bytes;
}

Conflict Shadow::access(uint64_t offset, uint64_t bytes, Access access, const Agent &agent,
                        bool in_order) {
  const Check check{agent.seen.complete,
                    static_cast<uint32_t>(agent.index) << kTimeBits | agent.now,
                    agent.index,
                    access,
                    in_order || agent.in_order,
                    initialised_};
  Conflict conflict{Conflict::none, 0, 0};
  // Neighbours mostly share their history; then what was found for one holds for the next.
  Cell before{kSplit, 0}, after{};
  const auto update = [&](Cell &cell) {
    if (cell.write == before.write && cell.read == before.read) {
      cell = after;
      return true;
    }
    const Cell was = cell;
    if (!check.update(cell, conflict)) return false;
    before = was;
    after = cell;
    return true;
  };
  for (uint64_t at = offset, end = offset + bytes; at < end;) {
    const uint64_t block = at / kBlock;
    const uint64_t first = at % kBlock;
    const uint64_t last = end - block * kBlock < kBlock ? end - block * kBlock : kBlock;
    if (last - first == kBlock && blocks_[block].write != kSplit) {
      if (!update(blocks_[block])) {
        conflict.offset = at;
        return conflict;
      }
    } else if (Cell same = blocks_[block]; same.write == kSplit || same.read != check.epoch ||
                                           access == Access::write ||
                                           !check.update(same, conflict)) {
      Cell *cells = split(block);
      for (uint64_t i = first; i < last; ++i) {
        if (!update(cells[i])) {
          conflict.offset = block * kBlock + i;
          return conflict;
        }
      }
      // Bytes that share one history again need one cell only.
      const auto other = [&](const Cell &cell) {
        return cell.write != cells[0].write || cell.read != cells[0].read;
      };
      if (last - first == kBlock && std::none_of(cells, cells + kBlock, other))
        blocks_[block] = cells[0];
    }
    at = block * kBlock + last;
  }
  return conflict;
}

void Shadow::poison(uint64_t offset, uint64_t bytes) {
  for (uint64_t at = offset, end = offset + bytes; at < end;) {
    const uint64_t block = at / kBlock;
    const uint64_t last = std::min<uint64_t>(end, (block + 1) * kBlock);
    if (last - at == kBlock && blocks_[block].write != kSplit) {
      blocks_[block].write |= kPoison;
      at = last;
      continue;
    }
    for (Cell *bytes_of_block = split(block); at < last; ++at)
      bytes_of_block[at % kBlock].write |= kPoison;
  }
}

uint32_t Shadow::write_since(uint64_t offset, uint64_t bytes, uint32_t stamp,
                             uint32_t pipes) const {
  for (uint64_t at = offset, end = offset + bytes; at < end;) {
    const uint32_t epoch = last_write(at);
    if (epoch != 0 && epoch_stamp(epoch) >= stamp &&
        (pipes >> epoch_agent(epoch) % kPipes & 1) != 0)
      return epoch;
    at = blocks_[at / kBlock].write == kSplit ? at + 1 : (at / kBlock + 1) * kBlock;
  }
  return 0;
}

uint32_t Shadow::last_write(uint64_t offset) const {
  const Cell &block = blocks_[offset / kBlock];
  return (block.write == kSplit ? bytes_[offset] : block).write & ~kPoison;
}

bool Shadow::written(uint64_t offset, uint64_t bytes) const {
  for (uint64_t at = offset; at < offset + bytes; ++at) {
    const Cell &cell = blocks_[at / kBlock].write == kSplit ? bytes_[at] : blocks_[at / kBlock];
    if ((cell.write & kPoison) != 0 || (cell.write == 0 && !initialised_)) return false;
  }
  return true;
}

}  // namespace tandem::emulation

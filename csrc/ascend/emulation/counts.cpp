#include "counts.h"

#include <algorithm>
#include <vector>

#include "cores.h"

namespace tandem::emulation {

bool counting = false;

namespace {

constexpr size_t kMost = 1 << 20;

struct Range {
  uint64_t begin, end;
};

// Bytes of one direction; ranges are joined when there are many.
class Touched {
 public:
  void add(uint64_t address, uint64_t bytes) {
    all_ += static_cast<int64_t>(bytes);
    if (!ranges_.empty() && ranges_.back().begin <= address && address <= ranges_.back().end) {
      ranges_.back().end = std::max(ranges_.back().end, address + bytes);
      return;
    }
    ranges_.push_back({address, address + bytes});
    if (ranges_.size() >= limit_) join();
  }

  int64_t all() const { return all_; }
  int64_t distinct() {
    join();
    int64_t sum = 0;
    for (const Range &range : ranges_) sum += static_cast<int64_t>(range.end - range.begin);
    return sum;
  }
  void clear() {
    all_ = 0;
    limit_ = kMost;
    ranges_.clear();
  }

 private:
  int64_t all_ = 0;
  size_t limit_ = kMost;
  std::vector<Range> ranges_;

  void join() {
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range &a, const Range &b) { return a.begin < b.begin; });
    size_t kept = 0;
    for (const Range &range : ranges_) {
      if (kept > 0 && range.begin <= ranges_[kept - 1].end)
        ranges_[kept - 1].end = std::max(ranges_[kept - 1].end, range.end);
      else
        ranges_[kept++] = range;
    }
    ranges_.resize(kept);
    limit_ = std::max(kMost, 2 * kept);
  }
};

Touched reads, writes;
int64_t ub = 0, l1 = 0;
std::vector<tandem_ascend_counts> launches;

void forget_accesses() {
  reads.clear();
  writes.clear();
  ub = l1 = 0;
}

}  // namespace

void count_access(Space space, uint64_t address, uint64_t bytes, Access access) {
  const bool both = access == Access::atomic;
  const auto moved = static_cast<int64_t>(both ? 2 * bytes : bytes);
  if (space == Space::UB) ub += moved;
  if (space == Space::L1) l1 += moved;
  if (space != Space::GM || bytes == 0) return;
  if (access != Access::write) reads.add(address, bytes);
  if (access == Access::write || both) writes.add(address, bytes);
}

void count_launch(const Launch &launch, bool faulty) {
  if (!faulty) {
    const bool vector = launch.kind == Kind::vector || launch.kind == Kind::mix_0_1;
    const bool cube = launch.kind == Kind::cube || launch.kind == Kind::mix_1_0;
    launches.push_back({vector ? 0
                        : cube ? 1
                               : 2,
                        static_cast<int32_t>(launch.blocks), reads.all(), reads.distinct(),
                        writes.all(), writes.distinct(), ub, l1});
  }
  forget_accesses();
}

}  // namespace tandem::emulation

using namespace tandem::emulation;

void tandem_ascend_count(int32_t on) {
  counting = on != 0;
  if (!counting) return;
  launches.clear();
  forget_accesses();
}

int32_t tandem_ascend_counted(tandem_ascend_counts *counts, int32_t room) {
  const auto count = static_cast<int32_t>(launches.size());
  std::copy_n(launches.begin(), std::min(count, room), counts);
  return count;
}

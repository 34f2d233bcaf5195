#include "global_memory.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace tandem::emulation {

namespace {

struct Registered {
  uint64_t begin, end;
  bool operator==(const Registered &) const = default;
};

// Views of one storage overlap, so a launch sees the union. Shadows live as long as the union stays
// the same; launches are ordered, so new ones may start empty.
std::vector<Registered> registered;
std::vector<std::unique_ptr<GlobalRange>> ranges;
bool changed = false;
GlobalRange *found_last = nullptr;

}  // namespace

bool register_global(uint64_t address, uint64_t bytes) {
  if (address == 0 || bytes == 0) return false;
  registered.push_back({address, address + bytes});
  changed = true;
  return true;
}

bool unregister_global(uint64_t address, uint64_t bytes) {
  const auto place =
      std::find(registered.begin(), registered.end(), Registered{address, address + bytes});
  if (place == registered.end()) return false;
  *place = registered.back();
  registered.pop_back();
  changed = true;
  return true;
}

void forget_global() {
  registered.clear();
  changed = true;
}

bool global_changed() { return changed; }

void prepare_global(bool anew) {
  if (!changed && !anew) return;
  std::vector<Registered> sorted = registered;
  std::sort(sorted.begin(), sorted.end(),
            [](const Registered &a, const Registered &b) { return a.begin < b.begin; });
  ranges.clear();
  found_last = nullptr;
  for (const Registered &one : sorted) {
    if (!ranges.empty() && one.begin < ranges.back()->end) {
      ranges.back()->end = std::max(ranges.back()->end, one.end);
      continue;
    }
    ranges.push_back(std::make_unique<GlobalRange>());
    ranges.back()->base = one.begin / 32 * 32;
    ranges.back()->begin = one.begin;
    ranges.back()->end = one.end;
  }
  for (auto &range : ranges) range->shadow.create(range->end - range->base, true);
  changed = false;
}

GlobalRange *find_global(uint64_t address, uint64_t bytes) {
  const auto holds = [&](const GlobalRange &range) {
    return range.begin <= address && address + bytes <= range.end && bytes <= range.end;
  };
  if (found_last != nullptr && holds(*found_last)) return found_last;
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), address,
                       [](uint64_t value, const auto &range) { return value < range->begin; });
  if (after == ranges.begin() || !holds(**std::prev(after))) return nullptr;
  return found_last = std::prev(after)->get();
}

}  // namespace tandem::emulation

#include "simt_races.h"

namespace tandem::emulation {

void SimtRaces::begin_function() {
  // Cells of an earlier part are as good as new, so pages stay; but not for ever.
  if (pages_.size() > kMostPages || part_ > 0xF0000000) {
    pages_.clear();
    last_ = nullptr;
    last_number_ = ~0ull;
    part_ = 0;
  }
  ++part_;
}

SimtRaces::Page &SimtRaces::page_at(uint64_t number) {
  if (number == last_number_) return *last_;
  Page &page = pages_[number];
  if (page.cells.empty()) page.cells.resize(kPage >> page.shift);
  last_number_ = number;
  last_ = &page;
  return page;
}

void SimtRaces::split(Page &page) {
  std::vector<Cell> fine(kPage);
  for (uint32_t i = 0; i < kPage; ++i) fine[i] = page.cells[i >> 2];
  page.cells = std::move(fine);
  page.shift = 0;
}

uint32_t SimtRaces::touch_cell(Cell &cell, Touch touch, uint16_t thread) {
  const bool written = cell.written == part_, seen = cell.seen == part_;
  const bool both_atomic = touch == Touch::atomic && cell.by_atomic;
  if (written && !both_atomic && cell.writer != thread) return cell.writer;
  if (touch == Touch::read || touch == Touch::fresh_read) {
    cell.reader = seen && cell.reader != thread ? kSeveral : thread;
    cell.seen = part_;
    return kNobody;
  }
  if (seen && cell.reader != thread) return cell.reader;
  cell.by_atomic = touch == Touch::atomic && (!written || cell.by_atomic);
  cell.writer = written && cell.writer != thread ? kSeveral : thread;
  cell.written = part_;
  return kNobody;
}

uint32_t SimtRaces::touch(uint64_t address, uint32_t bytes, Touch touch, uint16_t thread) {
  for (uint64_t at = address, end = address + bytes; at < end;) {
    Page &page = page_at(at / kPage);
    const uint64_t until = end < (at / kPage + 1) * kPage ? end : (at / kPage + 1) * kPage;
    if (page.shift != 0 && ((at | until) & 3) != 0) split(page);
    const uint32_t first = uint32_t(at % kPage) >> page.shift;
    const uint32_t past = uint32_t((until - 1) % kPage) >> page.shift;
    for (uint32_t cell = first; cell <= past; ++cell) {
      const uint32_t other = touch_cell(page.cells[cell], touch, thread);
      if (other != kNobody) return other;
    }
    at = until;
  }
  return kNobody;
}

}  // namespace tandem::emulation

// Order of loads and stores within one register-level vector function.
//
// The page "LocalMemBar" says: a load and a store of the same bytes, or two stores, are ordered
// where they use the same register; otherwise a barrier is needed. A store whose value was computed
// from a load waits for that load too, as any instruction waits for its operands. Everything before
// the function is complete when it starts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "cores.h"
#include "register_types.h"

namespace tandem::emulation {

class RegisterOrder {
 public:
  // A function starts: nothing before it can be in the way.
  void begin(uint32_t bytes) {
    if (loads_.size() < bytes || load_ > kMost || store_ > kMost) {
      loads_.assign(bytes, 0);
      stores_.assign(bytes, 0);
      load_ = store_ = 0;
    }
    store_before_load_ = store_before_store_ = store_;
    load_before_store_ = load_;
  }

  // A load by `reg` of consecutive bytes; the caller calls `next_load` first, once an instruction.
  void load(Register &reg, uint32_t offset, uint32_t bytes) {
    const auto first = stores_.begin() + offset;
    if (*std::max_element(first, first + bytes) > store_before_load_)
      check_stores(reg, offset, bytes, store_before_load_, "load", "VEC_STORE, MemType::VEC_LOAD");
    std::fill_n(loads_.begin() + offset, bytes, load_);
  }

  void store(const Register &reg, uint32_t offset, uint32_t bytes) {
    const auto first = stores_.begin() + offset;
    if (*std::max_element(first, first + bytes) > store_before_store_)
      check_stores(reg, offset, bytes, store_before_store_, "store",
                   "VEC_STORE, MemType::VEC_STORE");
    for (uint32_t byte = offset; byte < offset + bytes; ++byte)
      if (loads_[byte] > load_before_store_ && !reg.sources.include(loads_[byte]))
        unordered_load(byte);
    std::fill_n(first, bytes, store_);
  }

  Sources next_load() { return {++load_, 1}; }
  void next_store(const Register &reg) { writers_[++store_ % kRemembered] = reg.identity; }

  void stores_before_loads() { store_before_load_ = store_; }
  void stores_before_stores() { store_before_store_ = store_; }
  void loads_before_stores() { load_before_store_ = load_; }

 private:
  static constexpr uint32_t kMost = 1u << 31;
  static constexpr uint32_t kRemembered = 1024;  // an older store counts as one of another register

  void check_stores(const Register &reg, uint32_t offset, uint32_t bytes, uint32_t ordered,
                    const char *what, const char *barrier) {
    for (uint32_t byte = offset; byte < offset + bytes; ++byte) {
      const uint32_t store = stores_[byte];
      if (store <= ordered) continue;
      if (store_ - store < kRemembered && writers_[store % kRemembered] == reg.identity) continue;
      fail(
          "missing-synchronisation", "put LocalMemBar between them, or use one register",
          "a vector %s of UB byte %u may come before an earlier store of it from another register; "
          "LocalMemBar<MemType::%s> is missing",
          what, byte, barrier);
    }
  }

  [[noreturn]] void unordered_load(uint32_t byte) {
    fail("missing-synchronisation", "put LocalMemBar between them, or store what was loaded",
         "a vector store to UB byte %u may come before an earlier load of it, whose value is not "
         "part of what is "
         "stored; LocalMemBar<MemType::VEC_LOAD, MemType::VEC_STORE> is missing",
         byte);
  }

  std::vector<uint32_t> loads_, stores_;  // by byte: number of its last load and last store
  uint32_t load_ = 0, store_ = 0;
  uint32_t store_before_load_ = 0, store_before_store_ = 0, load_before_store_ = 0;
  uint64_t writers_[kRemembered] = {};
};

// Of the core that runs now.
RegisterOrder &register_order();

}  // namespace tandem::emulation

namespace AscendC::Reg {

enum class MemType { VEC_STORE, VEC_LOAD, SCALAR_STORE, SCALAR_LOAD, VEC_ALL, SCALAR_ALL };

template <MemType src, MemType dst>
void LocalMemBar() {
  constexpr bool kAll = src == MemType::VEC_ALL && dst == MemType::VEC_ALL;
  constexpr bool kStoreLoad = src == MemType::VEC_STORE && dst == MemType::VEC_LOAD;
  constexpr bool kLoadStore = src == MemType::VEC_LOAD && dst == MemType::VEC_STORE;
  constexpr bool kStoreStore = src == MemType::VEC_STORE && dst == MemType::VEC_STORE;
  static_assert(
      kAll || kStoreLoad || kLoadStore || kStoreStore,
      "not modelled: barriers of scalar accesses, or a pair that the documentation does not list");
  emulation::vector_function.require("LocalMemBar");
  auto &order = emulation::register_order();
  if (kAll || kStoreLoad) order.stores_before_loads();
  if (kAll || kLoadStore) order.loads_before_stores();
  if (kAll || kStoreStore) order.stores_before_stores();
}

}  // namespace AscendC::Reg

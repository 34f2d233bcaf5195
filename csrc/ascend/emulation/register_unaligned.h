// Loads and stores at any address: Load, Store, and the pieces they are made of.
//
// Written from the pages "连续非对齐搬入（LoadUnAlign）", "连续非对齐搬出（StoreUnAlign）", "Load"
// and "Store". A helper register of 32 bytes carries the part of a block that the next transfer
// continues with; using it out of turn, or leaving bytes in it, is a fault.
#pragma once

#include "register_memory.h"

namespace AscendC::Reg {

struct UnalignRegForLoad {
  int64_t block = -1;  // number of the 32-byte block of UB that it holds
};

struct UnalignRegForStore {
  uint32_t begin = 0, end = 0;  // offsets in UB of the bytes that wait in it
  uint8_t bytes[32];
  emulation::Sources sources;
  UnalignRegForStore() = default;
  UnalignRegForStore(const UnalignRegForStore &) = delete;
};

}  // namespace AscendC::Reg

namespace tandem::emulation {

using AscendC::Reg::UnalignRegForLoad;
using AscendC::Reg::UnalignRegForStore;

template <typename T>
void load_unaligned(Register &dst, UnalignRegForLoad &helper, const Ub<T> &src) {
  const Place<Space::UB> &place = src.place();
  if (helper.block != place.offset / 32)
    fail("unaligned-register",
         "call LoadUnAlignPre for this address, or load consecutive registers",
         "LoadUnAlign at UB offset %u finds another part of UB in its helper register",
         place.offset);
  const Loaded loaded = load_bytes<kRegisterBytes, 1>("LoadUnAlign", place);
  RegisterOrder &order = register_order();
  const Sources number = order.next_load();
  order.load(dst, place.offset, kRegisterBytes);
  fill<LoadDist::DIST_NORM>(dst, loaded, 0);
  dst.sources = number;
  helper.block = (place.offset + kRegisterBytes) / 32;
}

// Write what waits and `count` bytes of the register, but keep what does not fill a block of 32
// bytes.
void store_unaligned(const Place<Space::UB> &place, const Register &src, UnalignRegForStore &helper,
                     uint32_t count);
void store_rest(const Place<Space::UB> &place, UnalignRegForStore &helper);

}  // namespace tandem::emulation

namespace AscendC::Reg {

template <typename T>
void LoadUnAlignPre(UnalignRegForLoad &helper, Ub<T> src) {
  emulation::vector_function.require("LoadUnAlignPre");
  helper.block = src.place().offset / 32;
}

template <typename T = DefaultType, typename E>
void LoadUnAlign(RegTensor<E> &dst, UnalignRegForLoad &helper, Ub<E> src) {
  emulation::check_type<T, E>();
  emulation::load_unaligned(dst, helper, src);
}

template <typename T = DefaultType, PostLiteral post = PostLiteral::POST_MODE_UPDATE, typename E>
void LoadUnAlign(RegTensor<E> &dst, UnalignRegForLoad &helper, Ub<E> &src, uint32_t stride) {
  static_assert(post == PostLiteral::POST_MODE_UPDATE,
                "not supported by the device: POST_MODE_NORMAL");
  LoadUnAlign<T>(dst, helper, src);
  src += stride;
}

// The first `stride` elements of the register; their place is what the address then moves by.
template <typename T = DefaultType, PostLiteral post = PostLiteral::POST_MODE_UPDATE, typename E>
void StoreUnAlign(Ub<E> &dst, RegTensor<E> &src, UnalignRegForStore &helper, uint32_t stride) {
  emulation::check_type<T, E>();
  static_assert(post == PostLiteral::POST_MODE_UPDATE,
                "not supported by the device: POST_MODE_NORMAL");
  emulation::store_unaligned(dst.place(), src, helper, stride * sizeof(E));
  dst += stride;
}

template <typename T, PostLiteral post = PostLiteral::POST_MODE_UPDATE>
void StoreUnAlignPost(Ub<T> &dst, UnalignRegForStore &helper, int32_t stride) {
  static_assert(post == PostLiteral::POST_MODE_UPDATE,
                "not supported by the device: POST_MODE_NORMAL");
  emulation::store_rest(dst.place(), helper);
  dst += stride;
}

template <typename T = DefaultType, typename E>
void Load(RegTensor<E> &dst, Ub<E> src) {
  UnalignRegForLoad helper;
  LoadUnAlignPre(helper, src);
  LoadUnAlign<T>(dst, helper, src);
}

template <typename T = DefaultType, typename E>
void Store(Ub<E> dst, RegTensor<E> &src, uint32_t count) {
  if (count > uint32_t(emulation::kLanes<E>))
    emulation::fail("out-of-range", "store at most one register",
                    "Store of %u elements, a register has %d", count, emulation::kLanes<E>);
  UnalignRegForStore helper;
  StoreUnAlign<T>(dst, src, helper, count);
  StoreUnAlignPost(dst, helper, 0);
}

template <typename T = DefaultType, typename E>
void Store(Ub<E> dst, RegTensor<E> &src) {
  Store<T>(dst, src, emulation::kLanes<E>);
}

}  // namespace AscendC::Reg

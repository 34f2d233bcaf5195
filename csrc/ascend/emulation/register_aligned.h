// LoadAlign and StoreAlign: the documented forms, on the work of register_memory.h.
#pragma once

#include "register_memory.h"

namespace AscendC::Reg {

template <typename T = DefaultType, LoadDist dist = LoadDist::DIST_NORM, typename E>
void LoadAlign(RegTensor<E> &dst, Ub<E> src) {
  emulation::check_type<T, E>();
  emulation::load_aligned<E, dist>(src, dst);
}

template <typename T = DefaultType, PostLiteral post, LoadDist dist = LoadDist::DIST_NORM,
          typename E>
void LoadAlign(RegTensor<E> &dst, Ub<E> &src, int32_t stride) {
  static_assert(post == PostLiteral::POST_MODE_UPDATE,
                "not supported by the device: POST_MODE_NORMAL");
  LoadAlign<T, dist>(dst, src);
  src += stride;
}

template <typename T = DefaultType, LoadDist dist = LoadDist::DIST_NORM, typename E>
void LoadAlign(RegTensor<E> &dst, Ub<E> src, AddrReg offset) {
  LoadAlign<T, dist>(dst, emulation::moved(src, offset));
}

template <typename T = DefaultType, LoadDist dist, typename E>
void LoadAlign(RegTensor<E> &dst0, RegTensor<E> &dst1, Ub<E> src) {
  emulation::check_type<T, E>();
  emulation::load_aligned<E, dist>(src, dst0, dst1);
}

template <typename T = DefaultType, PostLiteral post, LoadDist dist, typename E>
void LoadAlign(RegTensor<E> &dst0, RegTensor<E> &dst1, Ub<E> &src, int32_t stride) {
  static_assert(post == PostLiteral::POST_MODE_UPDATE,
                "not supported by the device: POST_MODE_NORMAL");
  LoadAlign<T, dist>(dst0, dst1, src);
  src += stride;
}

template <typename T = DefaultType, LoadDist dist, typename E>
void LoadAlign(RegTensor<E> &dst0, RegTensor<E> &dst1, Ub<E> src, AddrReg offset) {
  LoadAlign<T, dist>(dst0, dst1, emulation::moved(src, offset));
}

template <typename T = DefaultType, StoreDist dist = StoreDist::DIST_NORM, typename E>
void StoreAlign(Ub<E> dst, RegTensor<E> &src, MaskReg &mask) {
  emulation::check_type<T, E>();
  static_assert(sizeof(E) < 8 || dist == StoreDist::DIST_NORM || dist == StoreDist::DIST_PACK_B64,
                "elements of 8 bytes store with DIST_NORM and DIST_PACK_B64 only");
  emulation::store_aligned<E, dist>(dst, src, mask);
}

template <typename T = DefaultType, PostLiteral post, StoreDist dist = StoreDist::DIST_NORM,
          typename E>
void StoreAlign(Ub<E> &dst, RegTensor<E> &src, int32_t stride, MaskReg &mask) {
  static_assert(post == PostLiteral::POST_MODE_UPDATE,
                "not supported by the device: POST_MODE_NORMAL");
  StoreAlign<T, dist>(dst, src, mask);
  dst += stride;
}

template <typename T = DefaultType, StoreDist dist = StoreDist::DIST_NORM, typename E>
void StoreAlign(Ub<E> dst, RegTensor<E> &src, AddrReg offset, MaskReg &mask) {
  StoreAlign<T, dist>(emulation::moved(dst, offset), src, mask);
}

// The elements of both registers in turn, whatever the mask.
template <typename T = DefaultType, StoreDist dist, typename E>
void StoreAlign(Ub<E> dst, RegTensor<E> &src0, RegTensor<E> &src1, MaskReg &) {
  emulation::check_type<T, E>();
  static_assert(dist >= StoreDist::DIST_INTLV_B8 &&
                    sizeof(E) == 1u << (int(dist) - int(StoreDist::DIST_INTLV_B8)),
                "two registers are stored with DIST_INTLV of the width of their elements");
  emulation::require_known(src0, emulation::kAll, "StoreAlign");
  emulation::require_known(src1, emulation::kAll, "StoreAlign");
  emulation::store_interleaved(dst, src0, src1);
}

template <typename T = DefaultType, StoreDist dist, typename E>
void StoreAlign(Ub<E> dst, RegTensor<E> &src0, RegTensor<E> &src1, AddrReg offset, MaskReg &mask) {
  StoreAlign<T, dist>(emulation::moved(dst, offset), src0, src1, mask);
}

}  // namespace AscendC::Reg

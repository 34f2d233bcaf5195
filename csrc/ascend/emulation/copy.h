// DataCopy and DataCopyPad between global memory and local memory, and the atomic mode of copies to
// global memory.
#pragma once

#include "tensor.h"

namespace AscendC {

// Blocks of 32-byte units; gaps are from the end of a block to the start of the next, in the same
// units.
struct DataCopyParams {
  uint16_t blockCount = 1;
  uint16_t blockLen = 0;
  uint16_t srcGap = 0;
  uint16_t dstGap = 0;
};

// Blocks of bytes; gaps are in bytes in global memory and in units of 32 bytes in local memory.
struct DataCopyExtParams {
  uint16_t blockCount = 1;
  uint32_t blockLen = 0;
  int64_t srcStride = 0;
  int64_t dstStride = 0;
  uint32_t rsv = 0;
};

template <class T>
struct DataCopyPadExtParams {
  bool isPad = false;
  uint8_t leftPadding = 0;
  uint8_t rightPadding = 0;
  T paddingValue{};
};

enum class PaddingMode : uint8_t { Normal = 0, Compact };

}  // namespace AscendC

namespace tandem::emulation {

// What lies beside each block in local memory: bytes of padding to the left and right, and the
// value that fills them.
struct Padding {
  uint32_t left, right;
  bool filled;
  const void *value;
  uint32_t value_bytes;
};

void copy_in(const LocalPlace &to, const GlobalPlace &from, uint64_t bytes, uint32_t align);
void copy_out(const GlobalPlace &to, const LocalPlace &from, uint64_t bytes, uint32_t align);
void copy_blocks_in(const LocalPlace &to, const GlobalPlace &from,
                    const AscendC::DataCopyParams &blocks, uint32_t align);
void copy_blocks_out(const GlobalPlace &to, const LocalPlace &from,
                     const AscendC::DataCopyParams &blocks, uint32_t align);
void copy_pad_in(const LocalPlace &to, const GlobalPlace &from,
                 const AscendC::DataCopyExtParams &blocks, const Padding &padding, bool compact);
void copy_pad_out(const GlobalPlace &to, const LocalPlace &from,
                  const AscendC::DataCopyExtParams &blocks, uint32_t element, bool compact);

// Kinds of Core::atomic.
enum Atomic : uint8_t { kNotAtomic, kAddS8, kAddS16, kAddS32 };

}  // namespace tandem::emulation

namespace AscendC {

template <class T>
inline void DataCopy(const LocalTensor<T> &dst, const GlobalTensor<T> &src, uint32_t count) {
  emulation::copy_in(dst.place(), src.place(), uint64_t{count} * sizeof(T), sizeof(T));
}

template <class T>
inline void DataCopy(const GlobalTensor<T> &dst, const LocalTensor<T> &src, uint32_t count) {
  emulation::copy_out(dst.place(), src.place(), uint64_t{count} * sizeof(T), sizeof(T));
}

template <class T>
inline void DataCopy(const LocalTensor<T> &dst, const GlobalTensor<T> &src,
                     const DataCopyParams &blocks) {
  emulation::copy_blocks_in(dst.place(), src.place(), blocks, sizeof(T));
}

template <class T>
inline void DataCopy(const GlobalTensor<T> &dst, const LocalTensor<T> &src,
                     const DataCopyParams &blocks) {
  emulation::copy_blocks_out(dst.place(), src.place(), blocks, sizeof(T));
}

// What DataCopyPad copies: all types but those of 8 bits and less that are floats.
template <class T>
inline constexpr bool kPadded = sizeof(T) > 1 || std::is_integral_v<T>;

template <class T, PaddingMode mode = PaddingMode::Normal>
inline void DataCopyPad(const LocalTensor<T> &dst, const GlobalTensor<T> &src,
                        const DataCopyExtParams &blocks, const DataCopyPadExtParams<T> &padding) {
  static_assert(kPadded<T>, "DataCopyPad knows no fp8 and fp4: view them as bytes");
  const uint32_t left = static_cast<uint32_t>(padding.leftPadding * sizeof(T));
  const uint32_t right = static_cast<uint32_t>(padding.rightPadding * sizeof(T));
  emulation::copy_pad_in(dst.place(), src.place(), blocks,
                         {left, right, padding.isPad, &padding.paddingValue, sizeof(T)},
                         mode == PaddingMode::Compact);
}

template <class T, PaddingMode mode = PaddingMode::Normal>
inline void DataCopyPad(const GlobalTensor<T> &dst, const LocalTensor<T> &src,
                        const DataCopyExtParams &blocks) {
  static_assert(kPadded<T>, "DataCopyPad knows no fp8 and fp4: view them as bytes");
  emulation::copy_pad_out(dst.place(), src.place(), blocks, sizeof(T),
                          mode == PaddingMode::Compact);
}

// Copies to global memory add to what is there, until DisableDmaAtomic. Floats are left out on
// purpose: their sums would depend on the order of the cores.
template <class T>
inline void SetAtomicAdd() {
  static_assert(
      std::is_same_v<T, int8_t> || std::is_same_v<T, int16_t> || std::is_same_v<T, int32_t>,
      "sums of floats would depend on the order of the cores");
  emulation::core().atomic = sizeof(T) == 1   ? emulation::kAddS8
                             : sizeof(T) == 2 ? emulation::kAddS16
                                              : emulation::kAddS32;
}

inline void DisableDmaAtomic() { emulation::core().atomic = emulation::kNotAtomic; }

}  // namespace AscendC

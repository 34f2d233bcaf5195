// Operands of matrix products: rows of values in the order in which the lanes take them.
//
// A step is 32 values, two for each of the 16 lanes, an odd and an even one. Rows of bf16 and fp8
// weights are taken as they lie: lane l of step s has elements 32 s + 2 l + 1 and 32 s + 2 l. Rows
// of fp4 weights are taken in chunks of 128 values, four steps: lane l of step s has elements 8 l +
// 4 + s and 8 l + s of the chunk, which are nibble s of the halves of the chunk's 32-bit word l.
//
// How steps are kept depends on the instruction set: operands_wide.h where a register holds 16
// lanes, operands_narrow.h elsewhere. The values are the same.
#pragma once

#include <cstdint>
#include <cstring>

#include "codecs.h"
#include "tandem.h"
#include "vec.h"

namespace tandem::TANDEM_ISA {

constexpr int64_t kStep = 32, kChunk = 128;

// What a value of an arranged row is kept as.
#if defined(__AVX512BF16__)
using Item = uint16_t;
#else
using Item = float;
#endif

template <int64_t Format>
constexpr int64_t kChunkBytes = Format == TANDEM_BF16    ? 2 * kChunk
                                : Format == TANDEM_MXFP4 ? kChunk / 2
                                                         : kChunk;

// Chunk k of a row of weights: the codes of its elements, copied where the row ends inside it.
template <int64_t Bytes>
TANDEM_INLINE const uint8_t *whole(const uint8_t *codes, int64_t left, uint8_t *room) {
  if (left >= Bytes) return codes;
  std::memset(room, 0, Bytes);
  if (left > 0) std::memcpy(room, codes, static_cast<size_t>(left));
  return room;
}

// Scales below 2^-100 count as 2^-100; above 2^100 there are none (checked when packing).
constexpr uint32_t kLeastScale = 27, kMostScale = 227;

TANDEM_INLINE float weight_scale(uint32_t code) {
  return float_of((code < kLeastScale ? kLeastScale : code) << 23);
}

}  // namespace tandem::TANDEM_ISA

// Copies into L1 that change the layout, and Fill.
#include <cstring>

#include "cube_layouts.h"

namespace tandem::emulation {
namespace {

constexpr Operand kNdSource{"DataCopy ND2NZ, source", Access::read, PIPE_MTE2};
constexpr Operand kNdResult{"DataCopy ND2NZ, destination", Access::write, PIPE_MTE2, kBlock};
constexpr Operand kDnSource{"DataCopy DN2NZ, source", Access::read, PIPE_MTE2};
constexpr Operand kDnResult{"DataCopy DN2NZ, destination", Access::write, PIPE_MTE2, kBlock};
constexpr Operand kFilled{"Fill", Access::write, PIPE_MTE2, kBlock};
constexpr Operand kUbSource{"DataCopy UB to L1, source", Access::read, PIPE_MTE3, kBlock};
constexpr Operand kL1Result{"DataCopy UB to L1, destination", Access::write, PIPE_MTE3, kBlock};

void require_stride(const char *what, uint64_t value, uint64_t most) {
  if (value < 1 || value > most)
    fail("bad-parameter", "see the ranges on the instruction's page",
         "%s is %llu, allowed are 1 to %llu", what, (unsigned long long)value,
         (unsigned long long)most);
}

void require_most(const char *what, uint64_t value, uint64_t most) {
  if (value > most)
    fail("bad-parameter", "see the ranges on the instruction's page",
         "%s is %llu, allowed are 0 to %llu", what, (unsigned long long)value,
         (unsigned long long)most);
}

void require_cube(const char *what) {
  if (core().type != CoreType::cube)
    fail("wrong-core", "call it under ASCEND_IS_AIC",
         "%s on a vector core: it belongs to the cube core", what);
}

// Where row `row` of the block column `column` goes, and all rows of a column at once where they
// lie together.
struct NzRows {
  const LocalPlace &place;
  uint64_t base;
  uint32_t column_stride, row_stride;  // blocks
  const Operand &operand;

  void put(uint32_t column, uint32_t rows, const uint8_t *blocks) const {
    const uint64_t start = base + uint64_t(column) * column_stride * kBlock;
    if (row_stride == 1) {
      std::memcpy(touch(place, start, uint64_t(rows) * kBlock, operand), blocks,
                  uint64_t(rows) * kBlock);
      return;
    }
    for (uint32_t row = 0; row < rows; ++row)
      std::memcpy(touch(place, start + uint64_t(row) * row_stride * kBlock, kBlock, operand),
                  blocks + uint64_t(row) * kBlock, kBlock);
  }
};

// Blocks of a column on their way; as many as nValue allows.
constexpr uint32_t kMostRows = 16384;
uint8_t column_blocks[kMostRows * kBlock];

}  // namespace

void nd_to_nz(const LocalPlace &dst, const GlobalPlace &src, uint32_t size,
              const AscendC::Nd2NzParams &p) {
  require_cube("DataCopy ND2NZ");
  require_most("ndNum", p.ndNum, 4095);
  require_most("nValue", p.nValue, kMostRows);
  require_most("dValue", p.dValue, 65535);
  if (p.ndNum == 0 || p.nValue == 0 || p.dValue == 0) return;
  require_stride("srcDValue", p.srcDValue, 65535);
  require_stride("dstNzC0Stride", p.dstNzC0Stride, 16384);
  require_stride("dstNzNStride", p.dstNzNStride, 16384);
  require_most("srcNdMatrixStride", p.srcNdMatrixStride, 65535);
  require_most("dstNzMatrixStride", p.dstNzMatrixStride, 16384);
  const uint64_t width = uint64_t(p.dValue) * size;
  const auto columns = uint32_t((width + kBlock - 1) / kBlock);
  for (uint32_t matrix = 0; matrix < p.ndNum; ++matrix) {
    const uint64_t from = matrix * p.srcNdMatrixStride * size;
    const NzRows to{dst, uint64_t(matrix) * p.dstNzMatrixStride * size, p.dstNzC0Stride,
                    p.dstNzNStride, kNdResult};
    for (uint32_t column = 0; column < columns; ++column) {
      const uint64_t start = uint64_t(column) * kBlock,
                     bytes = width - start < kBlock ? width - start : kBlock;
      for (uint32_t row = 0; row < p.nValue; ++row) {
        uint8_t *block = column_blocks + uint64_t(row) * kBlock;
        std::memcpy(block,
                    touch(src, int64_t(from + row * p.srcDValue * size + start), bytes, kNdSource),
                    bytes);
        std::memset(block + bytes, 0, kBlock - bytes);
      }
      to.put(column, p.nValue, column_blocks);
    }
  }
}

void dn_to_nz(const LocalPlace &dst, const GlobalPlace &src, uint32_t size,
              const AscendC::Dn2NzParams &p) {
  require_cube("DataCopy DN2NZ");
  require_most("dnNum", p.dnNum, 4095);
  require_most("nValue", p.nValue, kMostRows);
  require_most("dValue", p.dValue, (1u << 21) - 1);
  if (p.dnNum == 0 || p.nValue == 0 || p.dValue == 0) return;
  require_stride("srcDValue", p.srcDValue, (1ull << 40) - 1);
  require_stride("dstNzC0Stride", p.dstNzC0Stride, 16384);
  require_stride("dstNzNStride", p.dstNzNStride, 16384);
  require_most("dstNzMatrixStride", p.dstNzMatrixStride, 16384);
  const uint32_t per_block = kBlock / size, columns = (p.dValue + per_block - 1) / per_block;
  for (uint32_t matrix = 0; matrix < p.dnNum; ++matrix) {
    const uint64_t from = matrix * p.srcDnMatrixStride * size;
    const NzRows to{dst, uint64_t(matrix) * p.dstNzMatrixStride * size, p.dstNzC0Stride,
                    p.dstNzNStride, kDnResult};
    for (uint32_t column = 0; column < columns; ++column) {
      std::memset(column_blocks, 0, uint64_t(p.nValue) * kBlock);
      for (uint32_t i = 0; i < per_block && column * per_block + i < p.dValue; ++i) {
        const uint64_t line = from + (column * per_block + i) * p.srcDValue * size;
        const uint8_t *numbers = touch(src, int64_t(line), uint64_t(p.nValue) * size, kDnSource);
        for (uint32_t n = 0; n < p.nValue; ++n)
          std::memcpy(column_blocks + uint64_t(n) * kBlock + i * size, numbers + uint64_t(n) * size,
                      size);
      }
      to.put(column, p.nValue, column_blocks);
    }
  }
}

void fill_l1(const LocalPlace &dst, uint32_t size, uint32_t pattern, uint32_t repeats,
             uint32_t blocks, uint32_t gap) {
  require_cube("Fill");
  require_most("repeatTimes", repeats, 32767);
  require_most("blockNum", blocks, 32767);
  require_most("dstGap", gap, 32767);
  if (repeats == 0 || blocks == 0) return;
  for (uint32_t repeat = 0; repeat < repeats; ++repeat) {
    const uint64_t start = uint64_t(repeat) * (blocks + gap) * kBlock,
                   bytes = uint64_t(blocks) * kBlock;
    uint8_t *to = touch(dst, start, bytes, kFilled);
    for (uint64_t i = 0; i < bytes; i += size) std::memcpy(to + i, &pattern, size);
  }
}

void ub_to_l1(const LocalPlace &dst, const LocalPlace &src, uint32_t count, uint32_t length,
              uint32_t src_gap, uint32_t dst_gap) {
  if (core().type != CoreType::vector || core().block->cube == nullptr)
    fail("wrong-core", "run it on a vector core of a kernel with __mix__(1, 1) or (1, 2)",
         "DataCopy from UB to L1 outside a vector core that has a cube core");
  require_stride("blockCount", count, 4095);
  require_stride("blockLen", length, 65535);
  const uint64_t bytes = uint64_t(length) * kBlock;
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t *from = touch(src, i * (bytes + uint64_t(src_gap) * kBlock), bytes, kUbSource);
    std::memcpy(touch_of(*core().block->cube, dst, i * (bytes + uint64_t(dst_gap) * kBlock), bytes,
                         kL1Result),
                from, bytes);
  }
}

}  // namespace tandem::emulation

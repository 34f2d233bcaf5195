// Fixpipe: results of the cube from L0C to global memory and to UB.
#include <cmath>
#include <cstring>
#include <limits>

#include "cube_layouts.h"

namespace tandem::emulation {
namespace {

constexpr Operand kSource{"Fixpipe, source", Access::read, PIPE_FIX};
constexpr Operand kToGm{"Fixpipe, destination", Access::write, PIPE_FIX};
constexpr Operand kToUb{"Fixpipe, destination", Access::write, PIPE_FIX};

// Where results go: global memory, or the UB of a vector core.
struct Target {
  const GlobalPlace *global;
  const LocalPlace *local;
  Core *owner;

  uint8_t *at(uint64_t offset, uint64_t bytes) const {
    return global ? touch(*global, int64_t(offset), bytes, kToGm)
                  : touch_of(*owner, *local, offset, bytes, kToUb);
  }
};

// f32 to bf16. Unless CTRL[60] and CTRL[48] are set, infinities become the largest number and NaN
// zero.
uint16_t narrow(float x) {
  constexpr uint64_t kAll = 1ull << 60, kKeep = 1ull << 48;
  const uint16_t code = narrow_to_bfloat16(x);
  if ((core().control & (kAll | kKeep)) == (kAll | kKeep)) return code;
  if (x != x) return 0;
  return (code & 0x7FFF) == 0x7F80 ? uint16_t((code & 0x8000) | highest_code(kBfloat16)) : code;
}

void check(const LocalPlace &src, const FixpipeShape &s) {
  if (core().type != CoreType::cube)
    fail("wrong-core", "call it under ASCEND_IS_AIC", "Fixpipe on a vector core");
  if (src.space() != Space::L0C)
    fail("wrong-memory", "move from CO1 (L0C)", "Fixpipe from %s", space_name(src.space()));
  if (src.offset % 64 != 0)
    fail("misaligned", "align the source to 64 bytes", "Fixpipe from L0C at %u", src.offset);
  if (s.columns > 4095)
    fail("bad-parameter", "move at most 4095 columns", "Fixpipe with nSize %u", s.columns);
  if (!s.row_major && s.columns % kRows != 0)
    fail("bad-parameter", "move whole columns of 16 where the layout stays NZ",
         "Fixpipe with nSize %u", s.columns);
  if (s.dst_stride == 0) fail("bad-parameter", "state dstStride", "Fixpipe with dstStride 0");
  if (core().atomic != 0)
    fail("not-modelled", "no float atomics", "Fixpipe with an atomic operation");
}

// Columns [first_column, first_column + columns) and rows [first_row, first_row + rows) of every
// matrix.
struct Part {
  uint32_t first_row, rows, first_column, columns;
};

void move(const Target &target, const LocalPlace &src, const FixpipeShape &s, const Part &part) {
  const uint32_t size = s.to_bfloat16 ? 2 : 4;
  for (uint32_t matrix = 0; matrix < s.matrices; ++matrix) {
    const uint64_t from = uint64_t(matrix) * s.src_matrix * 64;
    const uint64_t to = matrix * s.dst_matrix * size;
    for (uint32_t column = 0; column < part.columns; column += kRows) {
      const uint32_t count = part.columns - column < kRows ? part.columns - column : kRows;
      const uint64_t start =
          from + uint64_t((part.first_column + column) / kRows) * s.src_stride * 64;
      for (uint32_t row = 0; row < part.rows; ++row) {
        float x[kRows];
        std::memcpy(x, touch(src, start + uint64_t(part.first_row + row) * 64, count * 4, kSource),
                    count * 4);
        const uint64_t element =
            s.row_major ? row * s.dst_stride + column
                        : uint64_t(column / kRows) * s.dst_stride + uint64_t(row) * kRows;
        uint8_t *out = target.at(to + element * size, uint64_t(count) * size);
        if (!s.to_bfloat16) {
          std::memcpy(out, x, count * 4);
          continue;
        }
        for (uint32_t i = 0; i < count; ++i) {
          const uint16_t code = narrow(x[i]);
          std::memcpy(out + 2 * i, &code, sizeof code);
        }
      }
    }
  }
}

}  // namespace

void fixpipe_to_gm(const GlobalPlace &dst, const LocalPlace &src, const FixpipeShape &s) {
  check(src, s);
  if (s.columns == 0 || s.rows == 0 || s.matrices == 0) return;
  move({&dst, nullptr, nullptr}, src, s, {0, s.rows, 0, s.columns});
}

void fixpipe_to_ub(const LocalPlace &dst, const LocalPlace &src, const FixpipeShape &s,
                   uint32_t dual, uint32_t sub_block) {
  check(src, s);
  const Block &block = *core().block;
  const uint32_t wanted = dual ? 2 : sub_block + 1, size = s.to_bfloat16 ? 2 : 4;
  if (dual > 2 || wanted > block.vector_cores)
    fail("bad-parameter", "run it in a kernel with __mix__(1, 2)",
         "Fixpipe to the UB of %u vector cores of a block with %u", wanted, block.vector_cores);
  if (dst.space() != Space::UB || dst.offset % kBlock != 0)
    fail("misaligned", "align the destination in UB to 32 bytes", "Fixpipe to %s at %u",
         space_name(dst.space()), dst.offset);
  if (s.row_major && s.columns * size % kBlock != 0)
    fail("bad-parameter", "move rows of whole 32 bytes", "Fixpipe to UB with nSize %u", s.columns);
  if ((dual == 1 && s.rows % 2 != 0) || (dual == 2 && s.columns % kBlock != 0))
    fail("bad-parameter", "split an even M, or an N that is a multiple of 32",
         "Fixpipe to two UBs of %u x %u", s.rows, s.columns);
  if (s.columns == 0 || s.rows == 0 || s.matrices == 0) return;
  if (dual == 0)
    return move({nullptr, &dst, block.vector[sub_block]}, src, s, {0, s.rows, 0, s.columns});
  const uint32_t rows = dual == 1 ? s.rows / 2 : s.rows;
  const uint32_t columns = dual == 2 ? s.columns / 2 : s.columns;
  for (uint32_t half = 0; half < 2; ++half)
    move({nullptr, &dst, block.vector[half]}, src, s,
         {dual == 1 ? half * rows : 0, rows, dual == 2 ? half * columns : 0, columns});
}

}  // namespace tandem::emulation

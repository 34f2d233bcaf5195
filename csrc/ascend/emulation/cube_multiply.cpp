// Mmad and MmadMx.
//
// Order of the sums: K in steps of 32 bytes of a row (MmadMx: of 32 elements, one scale), each step
// summed exactly and added to the f32 in L0C with one rounding. Hardware's order is not documented;
// kernels must not rely on this one.
#include <cmath>
#include <cstring>
#include <limits>

#include "cube_layouts.h"

namespace tandem::emulation {
namespace {

constexpr Operand kLeft{"Mmad, left matrix", Access::read, PIPE_M};
constexpr Operand kRight{"Mmad, right matrix", Access::read, PIPE_M};
constexpr Operand kLeftScales{"MmadMx, left scales", Access::read, PIPE_M};
constexpr Operand kRightScales{"MmadMx, right scales", Access::read, PIPE_M};
// Results of at least ten fractals follow each other in order, smaller ones want
// PipeBarrier<PIPE_M> between them.
constexpr uint32_t kOrderedFractals = 10;
constexpr Operand kBefore{"Mmad, result before", Access::read, PIPE_M};
constexpr Operand kResult{"Mmad, result", Access::write, PIPE_M};
constexpr Operand kBeforeInOrder{"Mmad, result before", Access::read, PIPE_M, 1, true};
constexpr Operand kResultInOrder{"Mmad, result", Access::write, PIPE_M, 1, true};

constexpr uint32_t kMost = 4095, kScaleGroup = 32, kScaledStep = 64;
constexpr uint32_t kMostNumbers = 64 * 1024 * 2;  // of 4 bits in L0A or L0B
constexpr uint32_t kMostResults = 256 * 1024 / 4;

// Operands and results of the instruction that runs, as f32.
float left[kMostNumbers], right[kMostNumbers], result[kMostResults];
double left_scales[kMostNumbers / kScaleGroup], right_scales[kMostNumbers / kScaleGroup],
    step_sums[kMost + 1];

uint32_t bits_of(CubeNumber number) {
  switch (number) {
    case CubeNumber::f32:
      return 32;
    case CubeNumber::f16:
    case CubeNumber::bf16:
      return 16;
    case CubeNumber::e4m3:
    case CubeNumber::e5m2:
      return 8;
    default:
      return 4;
  }
}

// The values of the 256 bytes of a format, two each where it has 4 bits.
struct Table {
  float value[256][2];
  explicit Table(const Format &format) {
    const bool halves = format.exponent_bits + format.mantissa_bits == 3;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      value[byte][0] = float(decode(format, halves ? byte & 15 : byte));
      value[byte][1] = float(decode(format, byte >> 4));
    }
  }
};

void widen(CubeNumber number, const uint8_t *block, uint32_t count, float *values) {
  static const Table e4m3(kE4m3), e5m2(kE5m2), e2m1(kE2m1), e1m2(kE1m2);
  switch (number) {
    case CubeNumber::f32:
      std::memcpy(values, block, count * sizeof(float));
      return;
    case CubeNumber::f16:
    case CubeNumber::bf16:
      for (uint32_t i = 0; i < count; ++i) {
        uint16_t code;
        std::memcpy(&code, block + 2 * i, sizeof code);
        values[i] = number == CubeNumber::bf16 ? widen_bfloat16(code) : float(decode(kHalf, code));
      }
      return;
    case CubeNumber::e4m3:
    case CubeNumber::e5m2:
      for (uint32_t i = 0; i < count; ++i)
        values[i] = (number == CubeNumber::e4m3 ? e4m3 : e5m2).value[block[i]][0];
      return;
    default:
      for (uint32_t i = 0; i < count; ++i)
        values[i] = (number == CubeNumber::e2m1 ? e2m1 : e1m2).value[block[i / 2]][i % 2];
  }
}

// One operand: `rows` (of M or N) by `depth`, in columns of blocks.
struct Matrix {
  const LocalPlace &place;
  CubeNumber number;
  uint32_t rows, depth;
  const Operand &operand;

  // f(row, first element, values) for every block of every row.
  template <class F>
  void each_block(F f) const {
    const uint32_t bits = bits_of(number), per_block = kBlock * 8 / bits;
    const uint32_t column_bytes = (rows + kRows - 1) / kRows * kFractal;
    float values[2 * kBlock];
    for (uint32_t first = 0, column = 0; first < depth; first += per_block, ++column) {
      const uint32_t count = depth - first < per_block ? depth - first : per_block;
      const uint32_t used = (count * bits + 7) / 8;
      const uint64_t start = uint64_t(column) * column_bytes;
      const uint8_t *together =
          used == kBlock ? touch(place, start, uint64_t(rows) * kBlock, operand) : nullptr;
      for (uint32_t row = 0; row < rows; ++row) {
        const uint8_t *block = together
                                   ? together + row * kBlock
                                   : touch(place, start + uint64_t(row) * kBlock, used, operand);
        widen(number, block, count, values);
        f(row, first, count, values);
      }
    }
  }
};

// Scales [rows, depth / 32] of an operand, from fractals of 16 rows x 2.
void read_scales(Space space, uint64_t base, uint32_t rows, uint32_t depth, const Operand &operand,
                 double *scales) {
  const uint32_t pairs = depth / kScaledStep;
  for (uint32_t band = 0; band * kRows < rows; ++band) {
    const uint32_t used = rows - band * kRows < kRows ? rows - band * kRows : kRows;
    for (uint32_t pair = 0; pair < pairs; ++pair) {
      const uint64_t fractal = base + uint64_t(band * pairs + pair) * kScaleFractal;
      const uint8_t *codes = access(space, fractal, used * 2, operand);
      for (uint32_t i = 0; i < used * 2; ++i) {
        const double value = codes[i] == 255 ? std::numeric_limits<double>::quiet_NaN()
                                             : std::ldexp(1.0, codes[i] - 127);
        scales[(band * kRows + i / 2) * 2 * pairs + 2 * pair + i % 2] = value;
      }
    }
  }
}

// f(row, first column, count, bytes of them) for the results in L0C.
template <class F>
void each_result(const LocalPlace &place, uint32_t rows, uint32_t columns, const Operand &operand,
                 F f) {
  const uint32_t column_bytes = (rows + kRows - 1) / kRows * 1024;
  for (uint32_t first = 0; first < columns; first += kRows) {
    const uint32_t count = columns - first < kRows ? columns - first : kRows;
    const uint64_t start = uint64_t(first / kRows) * column_bytes;
    uint8_t *together =
        count == kRows ? touch(place, start, uint64_t(rows) * 64, operand) : nullptr;
    for (uint32_t row = 0; row < rows; ++row)
      f(row, first, count,
        together ? together + row * 64 : touch(place, start + row * 64, count * 4, operand));
  }
}

void check(const AscendC::MmadParams &p, const LocalPlace &c, const LocalPlace &a,
           const LocalPlace &b, bool scaled, bool bytes) {
  if (core().type != CoreType::cube)
    fail("wrong-core", "call it under ASCEND_IS_AIC", "Mmad on a vector core");
  if (c.space() != Space::L0C || a.space() != Space::L0A || b.space() != Space::L0B)
    fail("wrong-memory", "multiply A2 (L0A) by B2 (L0B) into CO1 (L0C)", "Mmad of %s and %s to %s",
         space_name(a.space()), space_name(b.space()), space_name(c.space()));
  if (p.m > kMost || p.n > kMost || p.k > kMost)
    fail("bad-parameter", "split the product", "Mmad of %u x %u x %u, allowed are 0 to 4095", p.m,
         p.n, p.k);
  if (scaled && p.k % kScaledStep != 0)
    fail("bad-parameter", "fill K up with zeros to a multiple of 64", "MmadMx with k = %u", p.k);
  if (p.m == 1 && !p.disableGemv)
    fail("not-modelled", "set disableGemv",
         "Mmad of one row in GEMV mode, which reads the left matrix row-major");
  if (p.kDirectionAlign || p.isBias || p.unitFlag != 0 || (p.cmatrixSource && !p.cmatrixInitVal))
    fail("not-modelled", "leave kDirectionAlign, isBias, unitFlag and cmatrixSource as they are",
         "Mmad with an option that this emulation lacks");
  const uint32_t align = scaled && bytes ? 1024 : 512;
  if (c.offset % 1024 != 0 || a.offset % align != 0 || b.offset % align != 0)
    fail("misaligned", "align L0C to 1024 bytes, L0A and L0B to 512 (MmadMx with fp8: 1024)",
         "Mmad with L0C at %u, L0A at %u, L0B at %u", c.offset, a.offset, b.offset);
}

}  // namespace

void multiply(const LocalPlace &c, const LocalPlace &a, CubeNumber a_type, const LocalPlace &b,
              CubeNumber b_type, bool scaled, const AscendC::MmadParams &p) {
  check(p, c, a, b, scaled, bits_of(a_type) == 8);
  if (p.m == 0 || p.n == 0 || p.k == 0) return;
  const uint32_t m = p.m, n = p.n, k = p.k, groups = k / kScaleGroup;
  Matrix{a, a_type, m, k, kLeft}.each_block(
      [&](uint32_t row, uint32_t first, uint32_t count, float *x) {
        std::memcpy(left + uint64_t(row) * k + first, x, count * sizeof(float));
      });
  Matrix{b, b_type, n, k, kRight}.each_block(
      [&](uint32_t row, uint32_t first, uint32_t count, float *x) {
        for (uint32_t i = 0; i < count; ++i) right[uint64_t(first + i) * n + row] = x[i];
      });
  if (scaled) {
    read_scales(Space::L0A_MX, a.offset / 16, m, k, kLeftScales, left_scales);
    read_scales(Space::L0B_MX, b.offset / 16, n, k, kRightScales, right_scales);
  }
  const bool ordered = (m / kRows) * (n / kRows) >= kOrderedFractals;
  if (p.cmatrixInitVal) {
    std::memset(result, 0, uint64_t(m) * n * sizeof(float));
  } else {
    each_result(c, m, n, ordered ? kBeforeInOrder : kBefore,
                [&](uint32_t row, uint32_t first, uint32_t count, const uint8_t *x) {
                  std::memcpy(result + uint64_t(row) * n + first, x, count * sizeof(float));
                });
  }
  const uint32_t step = scaled ? kScaleGroup : kBlock * 8 / bits_of(a_type);
  for (uint32_t row = 0; row < m; ++row) {
    float *sums = result + uint64_t(row) * n;
    for (uint32_t first = 0; first < k; first += step) {
      const uint32_t last = first + step < k ? first + step : k;
      std::memset(step_sums, 0, n * sizeof(double));
      for (uint32_t i = first; i < last; ++i) {
        const double x = left[uint64_t(row) * k + i];
        const float *line = right + uint64_t(i) * n;
        for (uint32_t column = 0; column < n; ++column) step_sums[column] += x * line[column];
      }
      const uint32_t group = first / kScaleGroup;
      const double x = scaled ? left_scales[row * groups + group] : 1.0;
      for (uint32_t column = 0; column < n; ++column) {
        const double y = scaled ? x * right_scales[column * groups + group] : 1.0;
        sums[column] = static_cast<float>(sums[column] + step_sums[column] * y);
      }
    }
  }
  // Where the instruction read them first, that read has been held against earlier instructions.
  each_result(c, m, n, ordered || !p.cmatrixInitVal ? kResultInOrder : kResult,
              [&](uint32_t row, uint32_t first, uint32_t count, uint8_t *x) {
                std::memcpy(x, result + uint64_t(row) * n + first, count * sizeof(float));
              });
}

}  // namespace tandem::emulation

// LoadData: fractals and scales from L1 to L0A and L0B.
#include <cstdlib>
#include <cstring>

#include "cube_layouts.h"

namespace tandem::emulation {
namespace {

// Whole fractals are moved whether or not all of their rows were written: those that a product does
// not use may hold anything. What was not written in L1 is not written in L0 either.
constexpr Operand kSource{"LoadData, source", Access::read_any, PIPE_MTE1, kBlock};
constexpr Operand kResult{"LoadData, destination", Access::write, PIPE_MTE1, kFractal};
constexpr Operand kScaleSource{"LoadData, source of scales", Access::read_any, PIPE_MTE1, kBlock};
constexpr Operand kScaleResult{"LoadData, destination of scales", Access::write, PIPE_MTE1,
                               kScaleFractal};

void move(const LocalPlace &to, uint64_t dst, const LocalPlace &from, uint64_t src, uint64_t bytes,
          const Operand &source, const Operand &result) {
  const uint8_t *bytes_in = touch(from, src, bytes, source);
  std::memcpy(touch(to, dst, bytes, result), bytes_in, bytes);
  if (is_written(Space::L1, from.offset + src, bytes)) return;
  for (uint64_t i = 0; i < bytes; i += kBlock)
    if (!is_written(Space::L1, from.offset + src + i, kBlock))
      poison(to.space(), to.offset + dst + i, kBlock);
}

void require_level(const LocalPlace &to, const LocalPlace &from, const char *what) {
  if (core().type != CoreType::cube)
    fail("wrong-core", "call it under ASCEND_IS_AIC", "%s on a vector core", what);
  const Space target = to.space();
  if ((target != Space::L0A && target != Space::L0B) || from.space() != Space::L1)
    fail("wrong-memory", "load from L1 (A1, B1) to L0A (A2) or L0B (B2)", "%s from %s to %s", what,
         space_name(from.space()), space_name(target));
}

// A fractal of 16 x 16 numbers of 16 bits, transposed.
void transpose(const LocalPlace &to, uint64_t dst, const LocalPlace &from, uint64_t src) {
  static constexpr Operand kTurned{"LoadData, destination", Access::write, PIPE_MTE1, kFractal,
                                   true};
  move(to, dst, from, src, kFractal, kSource, kResult);
  if (!is_written(to.space(), to.offset + dst, kFractal)) return;
  uint16_t numbers[kRows][kRows], turned[kRows][kRows];
  uint8_t *fractal = touch(to, dst, kFractal, kTurned);
  std::memcpy(numbers, fractal, kFractal);
  for (uint32_t row = 0; row < kRows; ++row)
    for (uint32_t column = 0; column < kRows; ++column) turned[column][row] = numbers[row][column];
  std::memcpy(fractal, turned, kFractal);
}

}  // namespace

void load_matrix(const LocalPlace &dst, const LocalPlace &src, uint32_t size,
                 const AscendC::LoadData2DParamsV2 &p) {
  require_level(dst, src, "LoadData");
  if (p.mStep > 255 || p.kStep > 255)
    fail("bad-parameter", "load in several calls",
         "LoadData with mStep %u and kStep %u, allowed are 0 to 255", p.mStep, p.kStep);
  if (p.mStep == 0 || p.kStep == 0) return;
  if (p.ifTranspose && size != 2)
    fail("not-modelled", "use 16-bit elements, or a layout that needs no transposition",
         "LoadData with ifTranspose on elements of %u bytes", size);
  const uint64_t stride = static_cast<uint64_t>(std::abs(p.srcStride));
  for (uint32_t k = 0; k < p.kStep; ++k) {
    const uint64_t column = ((p.kStartPosition + k) * stride + p.mStartPosition) * kFractal;
    if (!p.ifTranspose) {
      move(dst, uint64_t(k) * p.dstStride * kFractal, src, column, uint64_t(p.mStep) * kFractal,
           kSource, kResult);
      continue;
    }
    for (uint32_t m = 0; m < p.mStep; ++m)
      transpose(dst, (uint64_t(m) * p.dstStride + k) * kFractal, src,
                column + uint64_t(m) * kFractal);
  }
}

void load_scales(const LocalPlace &dst, const LocalPlace &src,
                 const AscendC::LoadData2DMxParams &p) {
  require_level(dst, src, "LoadData of scales");
  if (p.xStep == 0 || p.yStep == 0) return;
  const Space scales = dst.space() == Space::L0A ? Space::L0A_MX : Space::L0B_MX;
  const uint64_t bytes = uint64_t(p.yStep) * kScaleFractal;
  for (uint32_t x = 0; x < p.xStep; ++x) {
    const uint64_t from = uint64_t(p.xStartPosition + x) * p.srcStride + p.yStartPosition;
    const uint8_t *codes = touch(src, from * kScaleFractal, bytes, kScaleSource);
    const uint64_t to = dst.offset / 16 + uint64_t(x) * p.dstStride * kScaleFractal;
    std::memcpy(access(scales, to, bytes, kScaleResult), codes, bytes);
    for (uint64_t i = 0; i < bytes; i += kBlock)
      if (!is_written(Space::L1, src.offset + from * kScaleFractal + i, kBlock))
        poison(scales, to + i, kBlock);
  }
}

}  // namespace tandem::emulation

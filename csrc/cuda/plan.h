// Which kernel runs a product, and into how many parts its sum is split.  Plain C++, tested on the
// host.
//
// Two rules keep a token's bits independent of the batch.  Whether the tensor cores can be used at
// all and how the sum is split depend on the weight and the formats only.  The tile may depend on
// the number of tokens, because all tiles of a kind walk K in the same steps into one accumulator.
#pragma once

#include <cstdint>

#include "../include/tandem_cuda.h"
#include "layout.h"

namespace tandem {

enum class Kernel {
  kMxSmallBf16,
  kMxSmallF32,
  kMxLargeBf16,
  kMxLargeF32,
  kBf16Small,
  kBf16Large,
  kGroupedSmall,
  kGroupedLarge,
  kGeneric
};

// A tile and where it pays.  B200: 7.67 TB/s, 148 multiprocessors, 4.5 PFLOP/s of fp8 and 2.25 of
// bf16.
struct TileClass {
  Kernel kernel;
  const char *name;
  int32_t outputs, tokens, depth, multiprocessors;  // tile, and the multiprocessors that share it
  const char *use;
};

constexpr TileClass kTiles[] = {
    {Kernel::kMxSmallBf16, "mx_small_bf16", 128, 64, 128, 1,
     "up to 128 tokens, or too few tiles to fill the device: below 587 FLOP a byte the weights "
     "bound the time, and "
     "narrow tiles leave the most blocks to stream them"},
    {Kernel::kMxSmallF32, "mx_small_f32", 128, 64, 128, 1,
     "as mx_small_bf16, for f32 outputs and for the parts of a split sum"},
    {Kernel::kMxLargeBf16, "mx_large_bf16", 256, 256, 128, 2,
     "bound by the tensor cores: at their full rate a multiprocessor draws 119 GB/s from L2, about "
     "what it can; half "
     "the tile would double that"},
    {Kernel::kMxLargeF32, "mx_large_f32", 256, 256, 128, 2,
     "as mx_large_bf16, for f32 outputs and for the parts of a split sum"},
    {Kernel::kBf16Small, "bf16_small", 128, 64, 64, 1,
     "up to 128 tokens, or too few tiles to fill the device: the weights bound the time below 293 "
     "FLOP a byte"},
    {Kernel::kBf16Large, "bf16_large", 256, 256, 64, 2,
     "bound by the tensor cores: twice the bytes of fp8 at half the rate draw the same 119 GB/s"},
    {Kernel::kGroupedSmall, "grouped_small", 128, 64, 128, 1,
     "fewer than 64 rows an expert: its weights bound the time, and one narrow tile holds all its "
     "rows"},
    {Kernel::kGroupedLarge, "grouped_large", 256, 128, 128, 2,
     "64 rows an expert and more: fp4 weights halve the bytes, so that 128 rows draw 119 GB/s; 256 "
     "divides 2304 and "
     "5120"},
    {Kernel::kGeneric, "generic", 1, 1, 1, 1,
     "addresses that the copy engine cannot take, and pairs of formats that no layer of the model "
     "has"},
};

constexpr int32_t kTileClasses = sizeof kTiles / sizeof kTiles[0];

constexpr const TileClass &tile_class(Kernel kernel) {
  return kTiles[static_cast<int32_t>(kernel)];
}

constexpr int32_t kFewTokens = 128;  // at most two narrow tiles
constexpr int64_t kOneWave = 74;     // pairs of multiprocessors
constexpr int32_t kManyRows = 64;    // rows of an expert, on average
constexpr int32_t kSplitOutputs = 18 * 128, kSplitDepth = 2048, kSplits = 4;

struct Choice {
  Kernel kernel;
  int32_t splits;  // parts of the sum; more than one, or f32 values to round, pass through the
                   // workspace
};

// Few rows of weights cannot occupy the device: 2304 rows are 18 tiles.  Four parts of the sum make
// 72 blocks, and cost 32 bytes an output of f32 parts written and read.  More parts would cost long
// prompts more than decoding gains.
inline int32_t sum_splits(int64_t outputs, int64_t depth) {
  bool few =
      outputs <= kSplitOutputs && depth >= kSplitDepth && depth % (kSplits * kTileDepth) == 0;
  return few ? kSplits : 1;
}

inline bool many_tokens(Kernel large, int64_t tokens, int64_t outputs, int64_t batch) {
  const TileClass &tile = tile_class(large);
  int64_t tiles = up(outputs, tile.outputs) * up(tokens, tile.tokens) * batch;
  return tokens > kFewTokens && tiles >= kOneWave;
}

// The copy engine wants rows of whole 16 bytes.
inline bool rows_fit(int64_t elements, int64_t bytes) { return elements * bytes % 16 == 0; }

inline Choice choose_linear(int32_t x, int32_t w, int32_t out, int64_t tokens, int64_t outputs,
                            int64_t depth) {
  int32_t splits = sum_splits(outputs, depth);
  if (x == TANDEM_MXFP8 && w == TANDEM_MXFP8 && rows_fit(depth, 1)) {
    bool wide = out == TANDEM_F32 || splits > 1;
    if (rows_fit(outputs, wide ? 4 : 2)) {
      bool large = many_tokens(Kernel::kMxLargeBf16, tokens, outputs, splits);
      if (wide) return {large ? Kernel::kMxLargeF32 : Kernel::kMxSmallF32, splits};
      return {large ? Kernel::kMxLargeBf16 : Kernel::kMxSmallBf16, 1};
    }
  }
  if (x == TANDEM_BF16 && w == TANDEM_BF16 && rows_fit(depth, 2) && rows_fit(outputs, 4)) {
    bool large = many_tokens(Kernel::kBf16Large, tokens, outputs, splits);
    return {large ? Kernel::kBf16Large : Kernel::kBf16Small, splits};
  }
  return {Kernel::kGeneric, 1};
}

// Bytes of f32 values between a kernel and what adds or rounds them.
inline int64_t parts_bytes(Choice choice, int32_t out, int64_t tokens, int64_t outputs) {
  bool rounds = out == TANDEM_BF16 &&
                (choice.kernel == Kernel::kBf16Small || choice.kernel == Kernel::kBf16Large);
  return choice.splits > 1 || rounds ? choice.splits * tokens * outputs * 4 : 0;
}

inline Kernel choose_group(int64_t tokens, int64_t groups, int64_t outputs, int64_t depth) {
  // A group's scales begin with a tile.
  if (depth % kTileDepth != 0 || !rows_fit(outputs, 2)) return Kernel::kGeneric;
  return many_tokens(Kernel::kMxLargeBf16, tokens, outputs, groups) ? Kernel::kMxLargeBf16
                                                                    : Kernel::kMxSmallBf16;
}

inline Kernel choose_grouped(int32_t w, int64_t rows, int64_t experts, int64_t outputs,
                             int64_t depth) {
  // The copy engine unpacks fp4 in steps of 128 values.
  if (w != TANDEM_MXFP4 || depth % 128 != 0 || !rows_fit(outputs, 2)) return Kernel::kGeneric;
  return rows >= experts * kManyRows ? Kernel::kGroupedLarge : Kernel::kGroupedSmall;
}

}  // namespace tandem

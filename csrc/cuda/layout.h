// Addresses and number formats that host and device agree on.  This file compiles for both, and is
// tested on the host.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define TANDEM_BOTH __host__ __device__ inline
#else
#define TANDEM_BOTH inline
#endif

namespace tandem {

constexpr int32_t kTileRows = 128, kTileGroups = 4, kGroup = 32;
constexpr int32_t kTileBytes = kTileRows * kTileGroups, kTileDepth = kTileGroups * kGroup;

TANDEM_BOTH constexpr int64_t up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// Tiles of scales that a row band of the given depth has.
TANDEM_BOTH int32_t scale_tiles(int64_t depth) {
  return static_cast<int32_t>(up(depth, kTileDepth));
}

// Bytes of the packed scales of a matrix.
TANDEM_BOTH int64_t scale_bytes(int64_t rows, int64_t depth) {
  return up(rows, kTileRows) * scale_tiles(depth) * kTileBytes;
}

// The four scales of (row, tile) are one word; its index, for rows of `tiles` tiles.
TANDEM_BOTH int64_t scale_word(int64_t row, int32_t tile, int32_t tiles) {
  return (row / kTileRows * tiles + tile) * kTileRows + row % 32 * 4 + row % kTileRows / 32;
}

// Byte of the scale of (row, group).
TANDEM_BOTH int64_t scale_byte(int64_t row, int32_t group, int32_t tiles) {
  return scale_word(row, group / kTileGroups, tiles) * 4 + group % kTileGroups;
}

TANDEM_BOTH float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

TANDEM_BOTH uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// 2^(code - 127); 0 is the subnormal 2^-127, 255 is NaN.
TANDEM_BOTH float ue8m0(uint8_t code) {
  if (code == 255) return from_bits(0x7fc00000u);
  return from_bits(code == 0 ? 0x400000u : static_cast<uint32_t>(code) << 23);
}

// An e4m3 code: sign, 4 exponent bits of bias 7, 3 bits of mantissa.
TANDEM_BOTH float e4m3(uint8_t code) {
  uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24, magnitude = code & 0x7f;
  if (magnitude == 0x7f) return from_bits(0x7fc00000u | sign);
  if (magnitude >= 8) return from_bits(sign | ((magnitude << 20) + (120u << 23)));
  float value = static_cast<float>(magnitude) * 0.001953125f;  // subnormal: multiples of 2^-9
  return sign ? -value : value;
}

// An e2m1 code 0..15: 0 0.5 1 1.5 2 3 4 6 and negatives.
TANDEM_BOTH float e2m1(uint8_t code) {
  int32_t magnitude = code & 7;
  int32_t halves = magnitude < 4 ? magnitude : (2 + (magnitude & 1)) << ((magnitude >> 1) - 1);
  float value = static_cast<float>(halves) * 0.5f;
  return code & 8 ? -value : value;
}

TANDEM_BOTH float bf16(uint16_t code) { return from_bits(static_cast<uint32_t>(code) << 16); }

// To nearest, ties to even; NaN stays NaN.
TANDEM_BOTH uint16_t to_bf16(float value) {
  uint32_t bits = to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// Rows of one group of a grouped product, and the band at which its own copy of scales begins.
struct GroupRows {
  int32_t first, count, band;
};

// Group e of inclusive prefix sums.  Bands need no sum over groups: those of a group end before
// those of the next begin, because a group of c rows that starts at row f takes ceil(c / 128) <= (f
// + c) / 128 - f / 128 + 1 bands.
TANDEM_BOTH GroupRows group_rows(const int32_t *ends, int32_t e) {
  int32_t first = e == 0 ? 0 : ends[e - 1];
  return {first, ends[e] - first, first / kTileRows + e};
}

// Bands that all groups of `rows` rows take together, at most.
TANDEM_BOTH int64_t group_bands(int64_t rows, int64_t groups) { return rows / kTileRows + groups; }

// The first group with row < ends[e]; `groups` where there is none.
TANDEM_BOTH int32_t group_of_row(const int32_t *ends, int32_t groups, int32_t row) {
  int32_t low = 0, high = groups;
  while (low < high) {
    int32_t middle = (low + high) / 2;
    if (row < ends[middle])
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace tandem

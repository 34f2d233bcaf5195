// Scores as integers in their order, by which selections (score descending, index ascending) are
// made.
#pragma once

#include "_block.h"

// Keys in the order of the scores; both zeros alike, 0 for NaN and -inf, which are never chosen.
__simt_callee__ inline uint32_t order_key(float score) {
  if (!(score > __int_as_float(int32_t(0xFF800000)))) return 0;
  const uint32_t bits = score == 0.0f ? 0u : __float_as_uint(score);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

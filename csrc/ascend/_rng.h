// The counter hash and exact scaling of sampling; rules in docs/CONTRACT.md, the plain form in
// core/ops/_fixed_cdf.py. Integers are exact, so every device draws the same token.
#pragma once

#include "kernel.h"

// SplitMix64.
__simt_callee__ inline uint64_t hash64(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// A random integer below 2^53 of seed and position; `use` tells draws of one position apart.
__simt_callee__ inline uint64_t uniform53(int64_t seed, int64_t position, uint64_t use) {
  const uint64_t counter = (uint64_t(position) * 3 + use) * 0x9E3779B97F4A7C15u;
  return hash64(uint64_t(seed) + (counter ^ (counter << 13))) >> 11;
}

// floor(number * total / 2^53) of a number below 2^53.
__simt_callee__ inline int64_t scaled_uniform(uint64_t number, int64_t total) {
  return int64_t(__umul64hi(number << 11, uint64_t(total)));
}

// round(share * 2^32) of a share from 0 to 1, ties to even.
__simt_callee__ inline int64_t of_32_bits(float share) {
  return int64_t(__float2ll_rn(share * 4294967296.0f));
}

// floor(share * total / 2^32) of a share up to 2^32.
__simt_callee__ inline int64_t part_of(int64_t share, int64_t total) {
  return int64_t(__umul64hi(uint64_t(share) << 31, uint64_t(total) << 1));
}

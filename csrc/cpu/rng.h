// The counter hash and exact scaling of sampling; rules in docs/CONTRACT.md, the plain form in
// core/ops/_fixed_cdf.py. Integers are exact, so every backend draws the same token.
#pragma once

#include <cstdint>

#include "vec.h"

namespace tandem::TANDEM_ISA {

__extension__ typedef unsigned __int128 Wide;

TANDEM_INLINE uint64_t high_product(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64);
}

// SplitMix64.
TANDEM_INLINE uint64_t hash64(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// A random integer below 2^53 of seed and position; `use` tells draws of one position apart.
TANDEM_INLINE uint64_t uniform53(uint64_t seed, int64_t position, uint64_t use) {
  const uint64_t counter = (static_cast<uint64_t>(position) * 3 + use) * 0x9E3779B97F4A7C15u;
  return hash64(seed + (counter ^ (counter << 13))) >> 11;
}

// floor(number * total / 2^53) of a number below 2^53.
TANDEM_INLINE int64_t scaled_uniform(uint64_t number, int64_t total) {
  return static_cast<int64_t>(high_product(number << 11, static_cast<uint64_t>(total)));
}

// round(share * 2^32) of a share from 0 to 1, ties to even.
TANDEM_INLINE int64_t of_32_bits(float share) {
  constexpr double kToInteger = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double kept = share > 0.0f ? (share < 1.0f ? static_cast<double>(share) : 1.0) : 0.0;
  return static_cast<int64_t>((kept * 4294967296.0 + kToInteger) - kToInteger);
}

// floor(share * total / 2^32) of a share up to 2^32.
TANDEM_INLINE int64_t part_of(int64_t share, int64_t total) {
  return static_cast<int64_t>(
      static_cast<Wide>(static_cast<uint64_t>(share)) * static_cast<uint64_t>(total) >> 32);
}

}  // namespace tandem::TANDEM_ISA

"""Arithmetic of sampling inside kernels; rules in docs/CONTRACT.md, the plain-torch form in core/ops/_fixed_cdf.py.

Integers are exact.  The exponential that weights come from is that of `_elementary`, whose bits are the same wherever
these kernels run, and with them every weight and token.
"""

from __future__ import annotations

import triton
import triton.language as tl

GREEDY_BELOW = tl.constexpr(1e-5)
WHOLE = tl.constexpr(1 << 42)  # the masses of a row sum to this
HEAVIEST = tl.constexpr(1 << 30)  # weight of the likeliest token
NOWHERE = tl.constexpr(0x7FFFFFFF)  # above every token id
UNBOUNDED = tl.constexpr(-2139095042)  # one below the image of -inf


@triton.jit
def log_of_one_plus(x):
    """log(1 + x) of f64 x >= 0, small x included: the rounding of 1 + x cancels in the quotient."""
    more = 1.0 + x
    return tl.where(more == 1.0, x, x * (tl.log(more) / (tl.where(more == 1.0, 2.0, more) - 1.0)))


@triton.jit
def image(x):
    """f32 without NaN -> int32 in the same order; both zeros have one image."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def preimage(key):
    """The f32 of an image."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def inverse_temperature(temperature):
    """1 / temperature in f32; 1 for a greedy row."""
    return tl.div_rn(1.0, tl.where(temperature < GREEDY_BELOW, 1.0, temperature))


@triton.jit
def scaled_logit(x, best, inverse):
    """(x - best) * inverse in f32; -inf stays, for an inverse temperature may underflow to 0."""
    raw = x - best
    return tl.where(raw == float("-inf"), raw, raw * inverse)


@triton.jit
def integer_weight(power):
    """floor(power * 2^30) int32 of an exponential."""
    return (power * 1073741824.0).to(tl.int32)


@triton.jit
def of_32_bits(share):
    """round(share * 2^32) int64 of an f32 in 0..1, ties to even."""
    wide = share * 4294967296.0
    down = tl.floor(wide)
    number = down.to(tl.int64)
    up = (wide - down > 0.5) | ((wide - down == 0.5) & ((number & 1) == 1))
    return number + up.to(tl.int64)


@triton.jit
def part_of(share, total):
    """floor(share * total / 2^32) of share up to 2^32 and total below 2^63, int64."""
    return tl.umulhi((share << 31).to(tl.uint64), (total << 1).to(tl.uint64)).to(tl.int64)


@triton.jit
def _mix(z):
    z = z + 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def uniform(seed, position, case: tl.constexpr):
    """The 53-bit random integer of int64 seed and position, uint64."""
    counter = (position.to(tl.uint64) * 3 + case) * 0x9E3779B97F4A7C15
    return _mix(seed.to(tl.uint64) + (counter ^ (counter << 13))) >> 11


@triton.jit
def scaled_uniform(number, total):
    """floor(number * total / 2^53) int64 of a 53-bit uint64 and int64 total."""
    return tl.umulhi(number << 11, total.to(tl.uint64)).to(tl.int64)


@triton.jit
def reciprocal(total):
    """What `mass` needs of the sum of a row's weights, int64 up to 2^53: floor((2^64 - 1) / total), uint64."""
    return 0xFFFFFFFFFFFFFFFF // tl.maximum(total, 1).to(tl.uint64)


@triton.jit
def mass(weight, total, inverse):
    """floor(weight * 2^42 / total) int64 of weights up to 2^30; inverse = reciprocal(total).

    A long division of two digits, 32 and 10 bits.  A quotient from the reciprocal is at most one too small.
    """
    divisor = tl.maximum(total, 1).to(tl.uint64)
    dividend = weight.to(tl.uint64) << 32
    high = tl.umulhi(dividend, inverse)
    rest = dividend - high * divisor
    over = rest >= divisor
    high = high + over.to(tl.uint64)
    rest = tl.where(over, rest - divisor, rest) << 10
    low = tl.umulhi(rest, inverse)
    low = low + (rest - low * divisor >= divisor).to(tl.uint64)
    return ((high << 10) + low).to(tl.int64)


@triton.jit
def chunk_of(sums, target, SPLITS: tl.constexpr):
    """(chunk whose part of the line holds the target, sum before it) of int64 sums [SPLITS], by chunk."""
    chunk = tl.sum((tl.cumsum(sums, axis=0) <= target).to(tl.int32))
    return chunk, tl.sum(tl.where(tl.arange(0, SPLITS) < chunk, sums, 0))

"""The counter hash of sampling on the host: the numbers of docs/CONTRACT.md in Python and numpy integers.

A random number is a pure function of (seed, absolute position of the token being drawn, case); batch, row,
chunk and history never enter.  `tandem.ops.sample` computes the same on the device.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

UNIFORM_BITS = 53
SEED_LIMIT = 1 << 64

_WORD = SEED_LIMIT - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def hash64(z: int) -> int:
    """SplitMix64 of an integer, modulo 2^64."""
    z = (z + _GOLDEN) & _WORD
    z = ((z ^ (z >> 30)) * _MIX_1) & _WORD
    z = ((z ^ (z >> 27)) * _MIX_2) & _WORD
    return z ^ (z >> 31)


def uniform53(seed: int, position: int, case: int = 0) -> int:
    """The 53-bit integer drawn at a position; case 0 draws tokens."""
    counter = ((3 * position + case) * _GOLDEN) & _WORD
    return hash64(seed + (counter ^ (counter << 13))) >> (64 - UNIFORM_BITS)


def uniform(seed: int, position: int, case: int = 0) -> float:
    """`uniform53` as a number in [0, 1), exact in a double."""
    return uniform53(seed, position, case) / (1 << UNIFORM_BITS)


def uniform53_array(seeds: npt.ArrayLike, positions: npt.ArrayLike, case: int = 0) -> npt.NDArray[np.uint64]:
    """`uniform53` of arrays of non-negative integers that broadcast; uint64."""
    with np.errstate(over="ignore"):
        golden = np.uint64(_GOLDEN)
        counter = (np.asarray(positions, np.uint64) * np.uint64(3) + np.uint64(case)) * golden
        z = np.asarray(seeds, np.uint64) + (counter ^ (counter << np.uint64(13))) + golden
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
        drawn: npt.NDArray[np.uint64] = (z ^ (z >> np.uint64(31))) >> np.uint64(64 - UNIFORM_BITS)
    return drawn


def fresh_seed() -> int:
    """64 bits from the operating system, for a request without a seed; no global generator is touched."""
    return secrets.randbits(64)

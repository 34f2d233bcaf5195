"""Matrix products whose rows do not depend on each other, and block-scaled operands.

The device adds products in its own order and width, which no host library copies.  Here each output is the sum of its
products in float64, in ascending order of the inner axis, rounded once: an element of the result depends on its own
row and column alone.  A library's product is taken where every partial sum is exact, so that its order is free.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_EXACT_BITS = 53
_E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def matmul(a: Array, b: Array) -> Array:
    """float64 [..., M, K] @ [..., K, N]."""
    if _bits(a) + _bits(b) + a.shape[-1].bit_length() <= _EXACT_BITS:
        exact: Array = np.matmul(a, b)
        return exact
    total = np.zeros(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1]))
    term = np.empty_like(total)
    columns = np.ascontiguousarray(np.moveaxis(a, -1, 0))[..., None]
    for k in range(a.shape[-1]):
        np.multiply(columns[k], b[..., k, None, :], out=term)
        np.add(total, term, out=total)
    return total


def _bits(x: Array) -> int:
    """From the highest to the lowest bit that is set in any element; more than fit float64 where one is not finite."""
    if not np.isfinite(x).all():
        return _EXACT_BITS + 1
    significand, exponent = np.frexp(x[x != 0])
    if not exponent.size:
        return 0
    whole = (np.abs(significand) * 2.0**_EXACT_BITS).astype(np.int64)
    trailing = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return int(exponent.max() - (exponent - _EXACT_BITS + trailing).min())


def unpack_e2m1(packed: Array, axis: int) -> Array:
    """Two codes a byte along an axis, the low nibble first -> float64."""
    last = np.moveaxis(packed.view(np.uint8), axis, -1)
    pairs = np.stack([last & 15, last >> 4], axis=-1)
    return np.moveaxis(_E2M1[pairs.reshape(*last.shape[:-1], -1)], -1, axis)


def ue8m0(code: Array) -> Array:
    """Scale bytes -> float64: 2^(code - 127), NaN for 255."""
    return np.where(code == 255, np.nan, np.ldexp(1.0, code.astype(np.int32) - 127))

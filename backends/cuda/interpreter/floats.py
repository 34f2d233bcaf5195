"""Small floating-point formats in numpy: exact decoding, and encoding as the device's ``cvt`` instructions round.

bf16 is held as uint16 codes, e4m3 and e5m2 as uint8 codes.  Encoding rounds to nearest, ties to the even code.  The
fp8 formats saturate, infinity too (``satfinite``); a NaN becomes the code with all bits but the sign set, which is what
PTX calls the canonical NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_F32_MANTISSA, _F32_BIAS, _F32_INFINITY = 23, 127, 0x7F800000
BF16_NAN = 0x7FFF


class Small(NamedTuple):
    """An 8-bit format.

    Args:
        mantissa: bits of the fraction.
        bias: of the exponent.
        largest: code of the largest finite value.
        infinities: whether the code after it is infinity; else it may be NaN.
    """

    mantissa: int
    bias: int
    largest: int
    infinities: bool


E4M3 = Small(mantissa=3, bias=7, largest=0x7E, infinities=False)
E5M2 = Small(mantissa=2, bias=15, largest=0x7B, infinities=True)
NAN8 = 0x7F


def bf16_decode(code: Array) -> Array:
    """uint16 codes -> float32."""
    return (code.astype(np.uint32) << 16).view(np.float32)


def bf16_encode(value: Array) -> Array:
    """float32 -> uint16 codes."""
    bits = np.asarray(value, np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where((bits & 0x7FFFFFFF) > _F32_INFINITY, np.uint16(BF16_NAN), rounded)


def _values(form: Small) -> Array:
    """The 256 values of a format, from its definition."""
    code = np.arange(128)
    exponent, fraction = code >> form.mantissa, code & ((1 << form.mantissa) - 1)
    significand = np.where(exponent == 0, fraction, fraction + (1 << form.mantissa))
    value = np.ldexp(significand.astype(np.float32), np.maximum(exponent, 1) - form.bias - form.mantissa)
    value[form.largest + 1 :] = np.nan
    if form.infinities:
        value[form.largest + 1] = np.inf
    return np.concatenate([value, -value])


_TABLES = {form: _values(form) for form in (E4M3, E5M2)}


def small_decode(code: Array, form: Small) -> Array:
    """uint8 codes -> float32."""
    return _TABLES[form][code]


def small_encode(value: Array, form: Small) -> Array:
    """float32 -> uint8 codes, in integer arithmetic."""
    bits = np.asarray(value, np.float32).view(np.uint32)
    magnitude = (bits & 0x7FFFFFFF).astype(np.int32)
    exponent = (magnitude >> _F32_MANTISSA) - _F32_BIAS + form.bias
    # What is subnormal in float32 is zero in both formats, so each significand has its leading bit.
    significand = (magnitude & 0x7FFFFF) | 0x800000
    drop = np.minimum(_F32_MANTISSA - form.mantissa + np.maximum(1 - exponent, 0), 26)
    kept = significand >> drop
    rest, half = significand - (kept << drop), 1 << (drop - 1)
    kept = kept + ((rest > half) | ((rest == half) & (kept & 1 == 1)))
    # The leading bit of a normal number carries into the exponent field; a subnormal one has none.
    code = np.minimum((np.maximum(exponent - 1, 0) << form.mantissa) + kept, form.largest)
    code = np.where(magnitude > _F32_INFINITY, NAN8, code)
    signed: Array = code | (bits >> 24 & 0x80)
    return signed.astype(np.uint8)

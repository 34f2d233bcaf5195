"""Elementary functions by polynomials: good to two units in the last place, and the same bits wherever they run.

The device's own exponential is approximate, and its error grows with the argument; an op whose result is bounded in
units of the last place, or whose bits decide something, uses these.  Only additions, multiplications and divisions that
IEEE 754 rounds correctly occur, and powers of two.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _power_of_two(n):
    """2^n as f32, n int32 from -126 to 127."""
    return ((n + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exp_negative(x):
    """exp(x) of f32 x <= 0, subnormal results included; NaN of NaN.

    x = n ln 2 + r with |r| <= ln(2) / 2 and a rounding, where the first part of ln 2 has so few bits that its product
    with n is exact.  The series of exp(r) up to r^7 leaves out less than 2^-27.
    """
    y = tl.where(x < -104.0, -104.0, tl.where(x != x, 0.0, x))  # exp(-104) rounds to zero
    whole = tl.floor(y * 1.4426950408889634 + 0.5)
    r = (y - whole * 0.693359375) + whole * 2.12194440e-4
    series = 1.0 + r * (1.0 / 7.0)
    for term in tl.static_range(6):
        series = 1.0 + r * series * (1.0 / (6 - term))
    n = whole.to(tl.int32)
    half = n >> 1
    value = series * _power_of_two(half) * _power_of_two(n - half)
    return tl.where(x != x, x, value)


@triton.jit
def log1p_unit(z):
    """log(1 + z) of f32 z from 0 to 1; NaN of NaN.

    2 atanh(w) with w = z / (2 + z) <= 1/3: no digits cancel however small z is.  The series up to w^17 leaves out less
    than 2^-31.
    """
    twice = tl.div_rn(z + z, 2.0 + z)
    square = 0.25 * twice * twice
    series = tl.full(z.shape, 1.0 / 17.0, tl.float32)
    for term in tl.static_range(7):
        series = 1.0 / (15 - 2 * term) + square * series
    return twice + twice * (square * series)

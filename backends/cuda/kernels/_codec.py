"""Number formats inside kernels; rules in docs/CONTRACT.md, the plain-torch form in core/ops/numerics.py."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sf_offset(row, group, groups):
    """Byte of the scale of (row, group) in the packed layout; groups: of a whole row.  See scales.py."""
    tile = (row // 128).to(tl.int64) * ((groups + 3) // 4) + group // 4
    return tile * 512 + (row % 32) * 16 + ((row % 128) // 32) * 4 + group % 4


@triton.jit
def ue8m0_round_up(x):
    """Smallest power of two >= x (x > 0, f32) as its biased exponent 1..254, int32."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    return tl.minimum(tl.maximum(exponent, 1), 254)


@triton.jit
def ue8m0_value(code):
    """2^(code - 127) as f32 of int32 codes 0..255; 0 is 2^-127, 255 is NaN."""
    bits = tl.where(code == 0, 0x400000, code << 23)
    bits = tl.where(code == 255, 0x7FC00000, bits)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def e4m3_encode(x):
    """f32 -> e4m3 codes (uint8), nearest even, saturating; NaN becomes 0x7f."""
    code = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return tl.where(x != x, 0x7F, code).to(tl.uint8)


@triton.jit
def e4m3_decode(code):
    """e4m3 codes (uint8) -> f32."""
    return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def e2m1_encode(x):
    """f32 -> e2m1 codes 0..15 (int32), nearest with ties to the even code, saturating; -0 becomes 0, NaN 0."""
    a = tl.abs(x)
    code = (a > 0.25).to(tl.int32)
    code += (a >= 0.75).to(tl.int32)
    code += (a > 1.25).to(tl.int32)
    code += (a >= 1.75).to(tl.int32)
    code += (a > 2.5).to(tl.int32)
    code += (a >= 3.5).to(tl.int32)
    code += (a > 5.0).to(tl.int32)
    return code + tl.where((x < 0) & (code > 0), 8, 0)


@triton.jit
def e2m1_decode(code):
    """e2m1 codes 0..15 (int32) -> f32."""
    magnitude = code & 7
    quarters = tl.where(magnitude < 2, 2 * magnitude, (2 + (magnitude & 1)) << (magnitude >> 1))
    value = quarters.to(tl.float32) * 0.25
    return tl.where(code > 7, -value, value)


@triton.jit
def nan_max(x, axis: tl.constexpr):
    """Largest |x| along an axis; NaN where there is one, which a plain maximum may lose."""
    bad = tl.max((x != x).to(tl.int32), axis=axis)
    top = tl.max(tl.where(x != x, 0.0, tl.abs(x)), axis=axis)
    return tl.where(bad > 0, float("nan"), top)


@triton.jit
def mxfp8_groups(grouped):
    """f32 [G, 32] -> codes uint8 [G, 32] and scale bytes int32 [G]; a NaN spoils its group."""
    amax = nan_max(grouped, 1)
    spoilt = amax != amax
    exponent = ue8m0_round_up(tl.div_rn(tl.maximum(tl.where(spoilt, 1.0, amax), 1e-4), 448.0))
    scale = tl.where(spoilt, 255, exponent)
    scaled = grouped * ue8m0_value(254 - exponent)[:, None]  # the reciprocal is a power of two as well
    code = tl.where(spoilt[:, None], 0x7F, e4m3_encode(scaled).to(tl.int32))
    return code.to(tl.uint8), scale

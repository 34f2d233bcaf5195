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
    return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)


@triton.jit
def e4m3_decode(code):
    """e4m3 codes (uint8) -> f32."""
    return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def e2m1_encode(x):
    """f32 -> e2m1 codes 0..15 (int32), nearest with ties to the even code, saturating; -0 becomes 0, NaN any code.

    |x| * 2^-126 has the code in the three bits where exponent and mantissa of an f32 meet, the rest below them.  That
    product loses what is less than 2^-23: an x so close to a tie counts as that tie.
    """
    bits = (tl.abs(x) * 1.1754943508222875e-38).to(tl.int32, bitcast=True)
    code = tl.minimum((bits + 0x1FFFFF + ((bits >> 22) & 1)) >> 22, 7)
    return code | tl.where((x < 0) & (code > 0), 8, 0)


@triton.jit
def e2m1_decode(code):
    """e2m1 codes 0..15 (int32) -> f32.

    The three bits of the magnitude, put where exponent and mantissa of an f32 meet, are the value times 2^-126.
    """
    bits = ((code & 7) << 22) | ((code & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def nan_max(x, axis: tl.constexpr):
    """Largest |x| along an axis, f32; NaN where there is one: bit patterns of magnitudes are in the order of values."""
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.max(bits, axis=axis).to(tl.float32, bitcast=True)


@triton.jit
def mxfp8_groups(grouped):
    """f32 [G, 32] -> codes uint8 [G, 32] and scale bytes int32 [G]; a NaN spoils its group."""
    amax = nan_max(grouped, 1)
    spoilt = amax != amax
    exponent = ue8m0_round_up(tl.div_rn(tl.maximum(amax, 1e-4), 448.0))
    reciprocal = ue8m0_value(tl.where(spoilt, 255, 254 - exponent))  # exact: the scale is a power of two
    return e4m3_encode(grouped * reciprocal[:, None]), tl.where(spoilt, 255, exponent)


@triton.jit
def mxfp4_groups(grouped):
    """f32 [G, 32] of bf16 values -> e2m1 codes int32 [G, 32] and scale bytes int32 [G]; a NaN spoils its group."""
    amax = nan_max(grouped, 1)
    spoilt = amax != amax
    exponent = ue8m0_round_up(tl.div_rn(tl.maximum(amax, 6.0 * 2.0**-126), 6.0))
    code = e2m1_encode(grouped * ue8m0_value(254 - exponent)[:, None])
    return code & tl.where(spoilt, 0, -1)[:, None], tl.where(spoilt, 255, exponent)


@triton.jit
def nvfp4_groups(grouped):
    """f32 [G, 16] of bf16 values -> e2m1 codes int32 [G, 16] and scale bytes int32 [G]; a NaN spoils its group.

    A bf16 value divided by an e4m3 number is a tie of e2m1 or further from one than 2^-9 of itself, so the rounded
    reciprocal serves, once its error is cut off.
    """
    amax = nan_max(grouped, 1)
    spoilt = amax != amax
    scale = e4m3_encode(tl.minimum(tl.div_rn(tl.maximum(amax, 6.0 * 2.0**-9), 6.0), 448.0)).to(tl.int32)
    bits = (grouped * tl.div_rn(1.0, e4m3_decode(scale.to(tl.uint8)))[:, None]).to(tl.int32, bitcast=True)
    code = e2m1_encode(((bits + 0x80) & -0x100).to(tl.float32, bitcast=True))
    return code & tl.where(spoilt, 0, -1)[:, None], tl.where(spoilt, 0x7F, scale)

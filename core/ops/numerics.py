"""Numeric building blocks shared by the references.

Two properties matter here more than speed.  *Batch invariance*: a row's bits must not depend on how many
other rows there are.  Elementwise IEEE operations have it for free; matrix products get it from calls of one
fixed shape; `torch.sigmoid`, `softplus`, `silu` do not have it on CPUs (the vector body and the scalar tail
of a loop differ by an ulp), so they are built from `exp` and `log1p`, which are uniform.  *Exactness*: codecs
follow the format definitions bit by bit.
"""

from __future__ import annotations

import torch

from tandem.contract.types import CanonicalWeight, QFormat

Tensor = torch.Tensor

ROW_TILE = 8
LONGEST_SUM = 1 << 14
E4M3_MAX = 448.0


def fixed_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, K] f32 @ weight [N, K] f32 -> [T, N] f32, row bits independent of T.

    Rows go through products of one fixed shape [8, K] x [K, N], the last tile padded with zeros, so that the
    library takes the same code path for every row count.  `row_position_invariant` checks the remaining
    assumption, that a row's place inside the tile does not matter.
    """
    rows, depth = x.shape
    transposed = weight.t()
    full = rows - rows % ROW_TILE
    if full == 0:
        return _last_tile(x, transposed)
    result = x.new_empty((rows, weight.shape[0]))
    for start in range(0, full, ROW_TILE):
        torch.mm(x[start : start + ROW_TILE], transposed, out=result[start : start + ROW_TILE])
    if full != rows:
        result[full:] = _last_tile(x[full:], transposed)
    return result


def _last_tile(x: Tensor, transposed: Tensor) -> Tensor:
    """Product of fewer rows than a tile, filled up with the one row repeated or with zeros."""
    if x.shape[0] == 1:
        return torch.mm(x.expand(ROW_TILE, -1), transposed)[:1]
    padded = x.new_zeros((ROW_TILE, x.shape[1]))
    padded[: x.shape[0]] = x
    return torch.mm(padded, transposed)[: x.shape[0]]


def row_position_invariant(depth: int, width: int) -> bool:
    """Whether this machine gives equal bits at each row of an [8, depth] x [depth, width] product."""
    generator = torch.Generator().manual_seed(depth * 65537 + width)
    row = torch.randn((1, depth), generator=generator)
    weight = torch.randn((width, depth), generator=generator)
    result = torch.mm(row.expand(ROW_TILE, depth).contiguous(), weight.t())
    return bool((result == result[:1]).all())


def row_sum(x: Tensor) -> Tensor:
    """Sum over the contiguous last axis, bits independent of the number of rows.

    The library splits the sum of a single long row over threads, so long rows are summed in two levels.
    """
    if x.shape[-1] <= LONGEST_SUM:
        return x.sum(-1)
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % LONGEST_SUM))
    pieces: Tensor = padded.unflatten(-1, (-1, LONGEST_SUM)).sum(-1)
    return pieces.sum(-1)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), built from uniform operations."""
    return 1.0 / (1.0 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)) without overflow or cancellation."""
    return torch.clamp_min(x, 0.0) + torch.log1p(torch.exp(-torch.abs(x)))


def ue8m0_round_up(x: Tensor) -> Tensor:
    """Smallest power of two >= x (x > 0, f32), as its biased exponent byte 1..254 (int32)."""
    bits = x.contiguous().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return exponent.clamp(1, 254)


def ue8m0_value(code: Tensor) -> Tensor:
    """2^(byte - 127) as f32; byte 0 is the subnormal 2^-127, byte 255 is NaN."""
    wide = code.to(torch.int32)
    bits = torch.where(wide == 0, torch.full_like(wide, 0x400000), wide << 23)
    value = bits.view(torch.float32)
    return torch.where(wide == 255, torch.full_like(value, float("nan")), value)


def e4m3_encode(x: Tensor) -> Tensor:
    """f32 -> e4m3 codes (uint8), round to nearest even, saturating at 448; NaN stays NaN."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def e4m3_decode(code: Tensor) -> Tensor:
    """e4m3 codes (uint8) -> f32.

    An e4m3 code shifted into a half has the same value divided by 256, subnormals included; the library's
    own conversion gives the same values many times slower on CPUs.
    """
    wide = code.to(torch.int16)
    half = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).view(torch.float16)
    value = half.to(torch.float32) * 256.0
    return torch.where((wide & 0x7F) == 0x7F, torch.full_like(value, float("nan")), value)


def e2m1_encode(x: Tensor) -> Tensor:
    """f32 -> e2m1 codes 0..15 (uint8), nearest with ties to the even code, saturating at 6; -0 becomes 0."""
    a = torch.abs(x)
    # Thresholds are the midpoints; a tie goes to the even code, so odd codes are entered by > and left by >=.
    code = (a > 0.25).to(torch.uint8)
    code += a >= 0.75
    code += a > 1.25
    code += a >= 1.75
    code += a > 2.5
    code += a >= 3.5
    code += a > 5.0
    return code + ((x < 0) & (code > 0)).to(torch.uint8) * 8  # NaN compares false and gives code 0


def e2m1_decode(code: Tensor) -> Tensor:
    """e2m1 codes 0..15 -> f32."""
    magnitude = code.to(torch.int32) & 7
    normal = (2 + (magnitude & 1)) << (magnitude >> 1)  # four times the value, for codes 2..7
    quarters = torch.where(magnitude < 2, 2 * magnitude, normal)
    value = quarters.to(torch.float32) * 0.25
    return torch.where(code > 7, -value, value)


def pack_nibbles(code: Tensor) -> Tensor:
    """[..., N] codes 0..15 -> [..., N/2] bytes, even element in the low nibble."""
    return code[..., 0::2] | (code[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """[..., N/2] bytes -> [..., N] codes."""
    byte = packed.view(torch.uint8)
    return torch.stack((byte & 15, byte >> 4), dim=-1).flatten(-2)


def encode_rows(x: Tensor, fmt: QFormat) -> tuple[Tensor, Tensor]:
    """x [..., N] -> (codes uint8, scale bytes uint8) in mxfp8, mxfp4 or nvfp4; rules in docs/CONTRACT.md."""
    grouped = x.to(torch.float32).unflatten(-1, (-1, fmt.group))
    amax = grouped.abs().amax(-1)
    if fmt is QFormat.NVFP4:
        scale_code = e4m3_encode((amax.clamp_min(6.0 * 2.0**-9) / 6.0).clamp_max(E4M3_MAX))
        scale = e4m3_decode(scale_code)
    else:
        limit, floor = (E4M3_MAX, 1e-4) if fmt is QFormat.MXFP8 else (6.0, 6.0 * 2.0**-126)
        exponent = ue8m0_round_up(amax.clamp_min(floor) / limit)
        scale_code = torch.where(torch.isnan(amax), torch.full_like(exponent, 255), exponent).to(torch.uint8)
        scale = ue8m0_value(scale_code)
    scaled = (grouped / scale.unsqueeze(-1)).flatten(-2)
    if fmt is QFormat.MXFP8:
        nan = torch.isnan(amax).repeat_interleave(fmt.group, -1, output_size=x.shape[-1])
        codes = e4m3_encode(scaled)
        return torch.where(nan, torch.full_like(codes, 0x7F), codes), scale_code
    return pack_nibbles(e2m1_encode(scaled)), scale_code


def decode_rows(codes: Tensor, scales: Tensor, fmt: QFormat) -> Tensor:
    """Inverse of `encode_rows`: f32 values, each exactly code times scale."""
    if fmt is QFormat.MXFP8:
        values, scale = e4m3_decode(codes), ue8m0_value(scales)
    else:
        values = e2m1_decode(unpack_nibbles(codes))
        scale = e4m3_decode(scales) if fmt is QFormat.NVFP4 else ue8m0_value(scales)
    scaled: Tensor = values.unflatten(-1, (-1, fmt.group)) * scale.unsqueeze(-1)
    return scaled.flatten(-2)


def decode_weight(weight: CanonicalWeight) -> Tensor:
    """Canonical weight [..., N, K] -> f32 values."""
    if weight.scale is None:
        return weight.data.to(torch.float32)
    scale = weight.scale.view(torch.uint8)
    if weight.fmt is not QFormat.FP8_BLOCK32:
        return decode_rows(weight.data.view(torch.uint8), scale, weight.fmt)
    values = e4m3_decode(weight.data.view(torch.uint8))
    rows, depth = values.shape[-2:]
    block = ue8m0_value(scale)
    spread = block.repeat_interleave(32, -2)[..., :rows, :].repeat_interleave(32, -1)[..., :depth]
    return values * spread

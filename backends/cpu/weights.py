"""How the CPU backend holds weights.

Matrices are held as bf16, which represents every fp8 and fp4 value with its power-of-two scale exactly, because
converting bf16 to f32 is nearly free while decoding fp8 is not.  Small ones are held as f32, where the conversion would
cost as much as the product.  The scale bytes are kept, so the stored bits can be given back.  The Engram table stays as
stored bytes, mapped from the file.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, WeightKind
from tandem.errors import CheckpointError, LayoutError
from tandem.ops.numerics import (
    ROW_TILE,
    decode_weight,
    e2m1_encode,
    e4m3_encode,
    pack_nibbles,
    row_position_invariant,
    ue8m0_value,
)

Tensor = torch.Tensor
LAYOUT, MAPPED = "cpu.values", "cpu.mapped"
SMALL = 1 << 16  # values of one matrix


@dataclass(frozen=True, slots=True)
class Matrix:
    """bf16 (or f32) values [..., N, K], the scale bytes they were stored with, and the row tile of products."""

    values: Tensor
    scale: Tensor | None
    tile: int


def pack(kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...]) -> PackedWeight:
    """Canonical weight -> PackedWeight of this backend; the result owns its memory, Engram tables excepted."""
    if kind is WeightKind.ENGRAM:
        scale_bytes = 0 if weight.scale is None else weight.scale.numel()
        return PackedWeight(kind, weight.fmt, shape, MAPPED, weight, weight.data.numel() + scale_bytes)
    small = kind is not WeightKind.EMBED and shape[-1] * shape[-2] <= SMALL
    if weight.scale is None:
        dtype = torch.float32 if small else weight.data.dtype
        values, scale = weight.data.to(dtype, copy=True).contiguous(), None
    else:
        values = _decode(weight, shape, torch.float32 if small else torch.bfloat16)
        scale = weight.scale.view(torch.uint8).clone()
    tile = _row_tile(shape[-1], shape[-2]) if len(shape) > 1 else ROW_TILE
    nbytes = values.numel() * values.element_size() + (0 if scale is None else scale.numel())
    return PackedWeight(kind, weight.fmt, shape, LAYOUT, Matrix(values, scale, tile), nbytes)


def matrix(op: str, weight: PackedWeight) -> Matrix:
    """The values that an op reads.

    Raises:
        LayoutError: another backend packed the weight, or it is the Engram table.
    """
    if weight.layout != LAYOUT:
        raise LayoutError(
            f"'{op}' got a packed weight it does not read",
            where=repr(weight),
            why=f"its layout is '{weight.layout}', the op reads '{LAYOUT}'",
            fix="pack the canonical bits with pack_weight() of this backend",
        )
    held: Matrix = weight.token
    return held


def _decode(weight: CanonicalWeight, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Values of a quantised weight, one matrix at a time so that the f32 form of a stack never exists."""
    values = torch.empty(shape, dtype=dtype)
    scales = weight.scale if weight.scale is None else weight.scale.view(-1, *weight.scale.shape[-2:])
    codes = weight.data.view(-1, *weight.data.shape[-2:])
    for index, target in enumerate(values.view(-1, *shape[-2:])):
        scale = None if scales is None else scales[index]
        wide = decode_weight(CanonicalWeight(codes[index], scale, weight.fmt))
        target.copy_(wide)
        if not bool((target.to(torch.float32) == wide).all()):
            raise CheckpointError(
                "a weight cannot be held as bf16",
                where=f"weight of shape {shape}, matrix {index}",
                why="a scale is 255 (NaN) or so small that values leave bf16's range",
                fix="check the checkpoint's scales",
            )
    return values


@functools.cache
def _row_tile(depth: int, width: int) -> int:
    """Rows per product: a whole tile where this machine's library treats them alike, else one at a time."""
    return ROW_TILE if row_position_invariant(depth, width) else 1


def unpack(weight: PackedWeight) -> CanonicalWeight:
    """The stored bits again: dividing by a power-of-two scale is exact, so the codes come back."""
    if weight.layout == MAPPED:
        mapped: CanonicalWeight = weight.token
        return mapped
    held = matrix("unpack_weight", weight)
    if held.scale is None:
        dtype = torch.bfloat16 if weight.fmt is QFormat.BF16 else torch.float32
        return CanonicalWeight(held.values.to(dtype), None, weight.fmt)
    wide = held.values.to(torch.float32)
    scale = ue8m0_value(held.scale)
    if weight.fmt is QFormat.FP8_BLOCK32:
        rows, depth = wide.shape[-2:]
        spread = scale.repeat_interleave(32, -2)[..., :rows, :].repeat_interleave(32, -1)[..., :depth]
        return CanonicalWeight(e4m3_encode(wide / spread), held.scale, weight.fmt)
    codes = e2m1_encode(wide / scale.repeat_interleave(weight.fmt.group, -1))
    codes |= ((wide == 0) & torch.signbit(wide)).to(torch.uint8) << 3  # a stored -0, which no encoder writes
    return CanonicalWeight(pack_nibbles(codes), held.scale, weight.fmt)

"""How fp4 weights lie in global memory: group by group, so that vector cores hand them to the cube as they lie.

No product of the cube takes fp8 rows with fp4 weights, so a vector core widens the codes on their way to L1.  Stored
are codes uint8 [.., K64/32, N, 16], the 16 bytes of a row's group of 32 elements, row by row, groups filled up to an
even number with zeros.  Widened where they lie, they are the fractals of L1: columns of 32 bytes, row by row.

Widening is a shift: the e4m3 code m << 2 stands for 2^-6 of what the e2m1 magnitude m is, subnormals included.  Scales
uint8 [.., N, K64/32], row-major as those of fp8, are stored plus 6 for it; 255 (NaN) stays 255.
"""

from __future__ import annotations

import torch

from tandem.backends.ascend.scales import ONE
from tandem.errors import LayoutError

Tensor = torch.Tensor
GROUP, PAIR = 32, 64  # elements of a scale, and of the two that belong together
OFFSET, NAN = 6, 255


def pack(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Packed e2m1 codes uint8 [.., N, K/2] and bytes uint8 [.., N, K/32] -> as stored.

    Raises:
        LayoutError: a scale is so large that its stored byte does not exist.
    """
    largest = int(torch.where(scale == NAN, 0, scale).max())
    if largest + OFFSET >= NAN:
        raise LayoutError(
            "an fp4 weight has scales that backend 'ascend' does not store",
            where=f"scales of shape {tuple(scale.shape)}",
            why=f"the largest byte is {largest}, and {OFFSET} more has to fit below {NAN}",
            fix="check the checkpoint: these scales are above 2^121",
        )
    depth = codes.shape[-1] * 2
    filled = torch.nn.functional.pad(codes, (0, -depth % PAIR // 2))
    groups = filled.unflatten(-1, (-1, GROUP // 2)).transpose(-2, -3).contiguous()
    moved = torch.where(scale == NAN, scale, scale + OFFSET)
    return groups, torch.nn.functional.pad(moved, (0, scale.shape[-1] % 2), value=ONE).contiguous()


def unpack(codes: Tensor, scale: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """The canonical bits that `pack` got."""
    moved = scale[..., : depth // GROUP].contiguous()
    plain = codes.transpose(-2, -3).flatten(-2)[..., : depth // 2].contiguous()
    return plain, torch.where(moved == NAN, moved, moved - OFFSET)

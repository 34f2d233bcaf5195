"""Layouts of quantised weights in global memory, as the cube's copies and the decoding of fp4 read them.

Activations are canonical: row-major codes [T, K], row-major scales [T, K/32].  For weights:

``ascend.mx8`` (fp8_block32): codes uint8 [.., N, K64], row-major, rows filled up with zero codes to a multiple of 64;
scales uint8 [.., N, K64/32], row-major, the byte of a block of 32 x 32 repeated for each of its rows, filled up with
127.  ND2NZ brings a tile of codes to L1 in fractals of 16 rows x 32 bytes; DN2NZ over pairs of scale bytes (as 16-bit
elements) brings the scales in fractals of 16 rows x 2 bytes, which is why their number is even; `MmadMx` sums over
multiples of 64.

``ascend.mx4`` (mxfp4): codes uint8 [.., K64/32, N, 16]: the 16 bytes of a row's group of 32 elements, row by row,
group by group.  A vector core widens 16 bytes to 32 where they lie and so gets the fractals of L1 without moving
anything.  Scales as above, plus 6: the widened code of e2m1 magnitude m is the e4m3 code m << 2, which stands for 2^-6
of its value, subnormals included.  255 (NaN) stays 255.

Rows are never filled up: the cube is told how many rows a tile has.
"""

from __future__ import annotations

import torch

from tandem.errors import LayoutError

Tensor = torch.Tensor
MX8, MX4 = "ascend.mx8", "ascend.mx4"
GROUP, STEP = 32, 64  # elements of a scale, and of the smallest sum of `MmadMx`
BLOCK_ROWS = 32
ONE, NAN, FP4_OFFSET = 127, 255, 6


def padded_depth(depth: int) -> int:
    """Elements of a row as stored."""
    return -(-depth // STEP) * STEP


def pack_mx8(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 codes uint8 [.., N, K] and bytes of blocks uint8 [.., N/32, K/32] -> as stored."""
    rows, depth = codes.shape[-2:]
    spread = scale.repeat_interleave(BLOCK_ROWS, -2)[..., :rows, :]
    return _fill(codes, padded_depth(depth), 0), _fill(spread, padded_depth(depth) // GROUP, ONE)


def unpack_mx8(codes: Tensor, scale: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """The canonical bits that `pack_mx8` got."""
    return codes[..., :depth].contiguous(), scale[..., ::BLOCK_ROWS, : -(-depth // GROUP)].contiguous()


def pack_mx4(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Packed e2m1 codes uint8 [.., N, K/2] and bytes uint8 [.., N, K/32] -> as stored.

    Raises:
        LayoutError: a scale is so large that its stored byte does not exist.
    """
    largest = int(torch.where(scale == NAN, 0, scale).max())
    if largest + FP4_OFFSET >= NAN:
        raise LayoutError(
            "an fp4 weight has scales that backend 'ascend' does not store",
            where=f"scales of shape {tuple(scale.shape)}",
            why=f"the largest byte is {largest}, and {FP4_OFFSET} more has to fit below {NAN}",
            fix="check the checkpoint: these scales are above 2^121",
        )
    depth = padded_depth(codes.shape[-1] * 2)
    groups = _fill(codes, depth // 2, 0).unflatten(-1, (-1, GROUP // 2)).transpose(-2, -3).contiguous()
    moved = torch.where(scale == NAN, scale, scale + FP4_OFFSET)
    return groups, _fill(moved, depth // GROUP, ONE)


def unpack_mx4(codes: Tensor, scale: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """The canonical bits that `pack_mx4` got."""
    moved = scale[..., : depth // GROUP].contiguous()
    plain = codes.transpose(-2, -3).flatten(-2)[..., : depth // 2].contiguous()
    return plain, torch.where(moved == NAN, moved, moved - FP4_OFFSET)


def _fill(x: Tensor, width: int, value: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, width - x.shape[-1]), value=value).contiguous()

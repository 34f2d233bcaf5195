"""The scale layout that SM100's block-scaled matrix products read, and its address arithmetic.

Scale bytes (ue8m0, one per 32 elements of a row) lie in tiles of 128 rows x 4 groups, 512 bytes each, tiles of a row
band one after another.  Within a tile the byte of (row r, group g) is at (r % 32) * 16 + (r // 32) * 4 + g.  Source:
NVIDIA PTX ISA, tcgen05 block scaling, scale vectors of 32 elements; CUTLASS names the same layout
``Sm1xxBlkScaledConfig``.

Rows and groups that fill up the last tiles hold anything in the row direction (a product of that row is thrown away),
and 127 (the scale one) in the group direction, where codes are read as zeros: a NaN there would spoil the row.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor
TILE_ROWS, TILE_GROUPS = 128, 4
TILE_BYTES = TILE_ROWS * TILE_GROUPS
ONE = 127


def packed_size(rows: int, groups: int) -> int:
    """Bytes of the packed scales of [rows, groups]."""
    return -(-rows // TILE_ROWS) * -(-groups // TILE_GROUPS) * TILE_BYTES


def packed_shape(rows: int, groups: int) -> tuple[int]:
    """Shape of the packed scales of [rows, groups]."""
    return (packed_size(rows, groups),)


def pack(scale: Tensor) -> Tensor:
    """uint8 [..., rows, groups] -> uint8 [..., packed_size]; filler rows are 127 too."""
    rows, groups = scale.shape[-2:]
    lead = scale.shape[:-2]
    pad = (0, -groups % TILE_GROUPS, 0, -rows % TILE_ROWS)
    filled = torch.nn.functional.pad(scale, pad, value=ONE)
    tiles = filled.view(*lead, -1, 4, 32, filled.shape[-1] // TILE_GROUPS, TILE_GROUPS)
    return tiles.movedim(-2, -4).transpose(-3, -2).reshape(*lead, -1).contiguous()


def unpack(packed: Tensor, rows: int, groups: int) -> Tensor:
    """uint8 [..., packed_size] -> uint8 [..., rows, groups]."""
    lead = packed.shape[:-1]
    bands, columns = -(-rows // TILE_ROWS), -(-groups // TILE_GROUPS)
    tiles = packed.view(*lead, bands, columns, 32, 4, TILE_GROUPS)
    plain = tiles.transpose(-3, -2).movedim(-4, -2).reshape(*lead, bands * TILE_ROWS, columns * TILE_GROUPS)
    return plain[..., :rows, :groups].contiguous()

"""Where the scale bytes of mxfp8 and mxfp4 operands lie: row-major, as many groups in a row as make an even number.

One byte (ue8m0) stands for 32 elements of a row.  Cube instructions take scales in pairs; a group that fills up the
last pair has 127 (the scale one), and its codes are read as zeros: a NaN there would spoil the row.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor
ONE = 127


def packed_shape(rows: int, groups: int) -> tuple[int, int]:
    """Shape of the packed scales of [rows, groups]."""
    return rows, groups + groups % 2


def pack(scale: Tensor) -> Tensor:
    """uint8 [..., rows, groups] -> uint8 [..., rows, groups filled up]."""
    return torch.nn.functional.pad(scale, (0, scale.shape[-1] % 2), value=ONE).contiguous()


def unpack(packed: Tensor, rows: int, groups: int) -> Tensor:
    """The way back, [..., rows, groups]."""
    return packed[..., :rows, :groups].contiguous()

"""`rope`: see csrc/ascend/rope.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _rows
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor
BEHIND, SYSTEM = 256, 2048  # bytes of UB behind a tile, and left to the device; as in the kernel


def rope(x: Tensor, cos_sin: Tensor, inverse: bool = False) -> Tensor:
    """See core/ops/rope.py."""
    y = torch.empty_like(x)
    native.run("rope", x, cos_sin, y, *x.shape, cos_sin.shape[1], int(inverse))
    return y


def tile(device: Device, heads: int, dim: int, turned: int) -> int:
    """Heads of a tile."""
    angles = 8 * _rows.steps(turned // 2) * _rows.STEP
    bytes_of_head = 4 * _rows.units(2 * turned) + 2 * _rows.units(2 * (dim - turned))
    return min(heads, (device.ub_bytes - SYSTEM - 2 * angles - 4 * BEHIND) // bytes_of_head, 4095)


def _plan(device: Device, x: Tensor, cos_sin: Tensor, inverse: bool = False) -> list[Plan]:
    """Angles are read once for each tile of heads."""
    (rows, heads, dim), turned = x.shape, cos_sin.shape[1]
    tiles = -(-heads // tile(device, heads, dim, turned))
    angles = rows * tiles * turned * 4
    parts = _rows.steps(turned // 2)
    registers = parts * _rows.STEP * 4
    moved = _rows.units(2 * turned) + _rows.units(2 * (dim - turned)) + 2 * dim
    held = heads * (moved + registers + turned * 2) + 2 * tiles * (registers + _rows.units(2 * turned))
    return _rows.plan(device, rows * tiles, x.numel() * 2 + angles, x.numel() * 2, rows * held)


OPS: dict[str, Any] = {"rope": rope}
PLAN: dict[str, Any] = {"rope": _plan}

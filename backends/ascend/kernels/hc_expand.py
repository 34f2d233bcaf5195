"""`hc_expand`: see csrc/ascend/hc_expand.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _tiles
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor
PIECES = 4  # that UB holds


def hc_expand(x: Tensor, m: int) -> Tensor:
    """See core/ops/hc_expand.py."""
    rows, width = x.shape
    trunk = x.new_empty((rows, m, width))
    native.run("hc_expand", x, trunk, rows, m, 2 * width, _tiles.piece(_tiles.device(x), rows, 2 * width, PIECES))
    return trunk


def _plan(device: Device, x: Tensor, m: int) -> list[Plan]:
    """Each row is read once and written m times."""
    rows, size = x.shape[0], 2 * x.shape[1]
    tasks, moved = rows * -(-size // _tiles.piece(device, rows, size, PIECES)), rows * size
    return _tiles.plan(device, tasks, moved, m * moved, (1 + m) * moved)


OPS: dict[str, Any] = {"hc_expand": hc_expand}
PLAN: dict[str, Any] = {"hc_expand": _plan}

"""`gather_rows`: see csrc/ascend/gather_rows.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _tiles
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor
PIECES, WINDOW = 5, 8192  # pieces and bytes of indices that UB holds


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """See core/ops/gather_rows.py."""
    rows = index.shape[0]
    y = torch.empty((rows, *x.shape[1:]), dtype=x.dtype, device=x.device)
    size = _tiles.row_bytes(x)
    if size:
        native.run("gather_rows", x, index, y, rows, size, _piece(_tiles.device(x), rows, size))
    return y


def _piece(device: Device, rows: int, size: int) -> int:
    return _tiles.piece(device, rows, size, PIECES, WINDOW)


def _plan(device: Device, x: Tensor, index: Tensor) -> list[Plan]:
    """All rows, as if none were missing; each block fills a piece with zeros."""
    rows, size = index.shape[0], _tiles.row_bytes(x)
    piece = _piece(device, rows, size)
    tasks, moved = rows * -(-size // piece), rows * size
    ub = 2 * moved + 8 * rows + _tiles.blocks(device, tasks) * piece
    return _tiles.plan(device, tasks, moved + 4 * rows, moved, ub)


OPS: dict[str, Any] = {"gather_rows": gather_rows}
PLAN: dict[str, Any] = {"gather_rows": _plan}

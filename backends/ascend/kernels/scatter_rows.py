"""`scatter_rows`: see csrc/ascend/scatter_rows.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _tiles
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor
PIECES, WINDOW = 4, 8192  # pieces and bytes of indices that UB holds


def scatter_rows(x: Tensor, index: Tensor, values: Tensor) -> None:
    """See core/ops/scatter_rows.py."""
    rows, size = index.shape[0], _tiles.row_bytes(x)
    if size:
        native.run("scatter_rows", x, index, values, rows, size, _piece(_tiles.device(x), rows, size))


def _piece(device: Device, rows: int, size: int) -> int:
    return _tiles.piece(device, rows, size, PIECES, WINDOW)


def _plan(device: Device, x: Tensor, index: Tensor, values: Tensor) -> list[Plan]:
    """All rows, as if each had a place."""
    rows, size = index.shape[0], _tiles.row_bytes(x)
    tasks, moved = rows * -(-size // _piece(device, rows, size)), rows * size
    return _tiles.plan(device, tasks, moved + 4 * rows, moved, 2 * moved + 8 * rows)


OPS: dict[str, Any] = {"scatter_rows": scatter_rows}
PLAN: dict[str, Any] = {"scatter_rows": _plan}

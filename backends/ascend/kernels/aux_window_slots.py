"""`aux.window_slots`: a SIMT thread takes one position of a row's window."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def window_slots(
    positions: Tensor, slot: Tensor, table: Tensor, first: Tensor, block_entries: int, window: int
) -> Tensor:
    """See core/ops/aux_window_slots.py."""
    rows = positions.shape[0]
    out = positions.new_empty((rows, window))
    native.run("aux_window_slots", positions, slot, table, first, out, rows, table.shape[1], block_entries, window)
    return out


def _plan(device: Device, positions: Tensor, block_entries: int, window: int, **others: Any) -> list[Plan]:
    """Position, slot, lowest position and the table entries of the blocks a window meets."""
    rows = positions.shape[0]
    read = rows * (12 + 4 * (window // block_entries + 1))
    return _grid.plan(device, rows * window, read, rows * window * 4)


OPS: dict[str, Any] = {"aux.window_slots": window_slots}
PLAN: dict[str, Any] = {"aux.window_slots": _plan}

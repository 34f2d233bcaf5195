"""`aux.entry_slots`: a SIMT thread takes a row and looks up one block."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def entry_slots(positions: Tensor, slot: Tensor, table: Tensor, block_entries: int, ratio: int, wrap: bool) -> Tensor:
    """See core/ops/aux_entry_slots.py."""
    out = torch.empty_like(positions)
    sizes = (positions.shape[0], table.shape[1], block_entries, ratio, int(wrap))
    native.run("aux_entry_slots", positions, slot, table, out, *sizes)
    return out


def _plan(device: Device, positions: Tensor, **others: Any) -> list[Plan]:
    """Position, slot and one table entry of each row."""
    rows = positions.shape[0]
    return _grid.plan(device, rows, rows * 12, rows * 4)


OPS: dict[str, Any] = {"aux.entry_slots": entry_slots}
PLAN: dict[str, Any] = {"aux.entry_slots": _plan}

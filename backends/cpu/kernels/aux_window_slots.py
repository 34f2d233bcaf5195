"""`aux.window_slots`: see csrc/cpu/ops/aux_window_slots.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels import _shapes

Tensor = torch.Tensor


def window_slots(
    positions: Tensor, slot: Tensor, table: Tensor, first: Tensor, block_entries: int, window: int
) -> Tensor:
    """See core/ops/aux_window_slots.py."""
    rows = positions.shape[0]
    _shapes.require("aux.window_slots", slot=(slot, (rows,)), first=(first, table.shape[:1]))
    out = temporary.empty((rows, window), dtype=torch.int32)
    native.run("aux_window_slots", positions, slot, table, first, out, rows, *table.shape, block_entries, window)
    return out


OPS: dict[str, Any] = {"aux.window_slots": window_slots}

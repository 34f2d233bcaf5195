"""`aux.entry_slots`: see csrc/cpu/ops/aux_entry_slots.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels import _shapes

Tensor = torch.Tensor


def entry_slots(positions: Tensor, slot: Tensor, table: Tensor, block_entries: int, ratio: int, wrap: bool) -> Tensor:
    """See core/ops/aux_entry_slots.py."""
    _shapes.require("aux.entry_slots", slot=(slot, positions.shape))
    out = temporary.empty(positions.shape, dtype=torch.int32)
    sizes = (positions.shape[0], *table.shape, block_entries, ratio, int(wrap))
    native.run("aux_entry_slots", positions, slot, table, out, *sizes)
    return out


OPS: dict[str, Any] = {"aux.entry_slots": entry_slots}

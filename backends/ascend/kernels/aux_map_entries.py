"""`aux.map_entries`: a SIMT thread takes an entry."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def map_entries(entries: Tensor, slot: Tensor, table: Tensor, block_entries: int) -> Tensor:
    """See core/ops/aux_map_entries.py."""
    rows, width = entries.shape
    out = torch.empty_like(entries)
    native.run("aux_map_entries", entries, slot, table, out, rows, width, table.shape[1], block_entries)
    return out


def _plan(device: Device, entries: Tensor, table: Tensor, **others: Any) -> list[Plan]:
    """Entries and slots once, each table row once: entries that share a block find it in the cache."""
    rows, width = entries.shape
    read = rows * (4 + 4 * width + 4 * min(width, table.shape[1]))
    return _grid.plan(device, rows * width, read, rows * width * 4)


OPS: dict[str, Any] = {"aux.map_entries": map_entries}
PLAN: dict[str, Any] = {"aux.map_entries": _plan}

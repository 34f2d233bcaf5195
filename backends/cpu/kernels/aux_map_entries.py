"""`aux.map_entries`: see csrc/cpu/ops/aux_map_entries.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels import _shapes

Tensor = torch.Tensor


def map_entries(entries: Tensor, slot: Tensor, table: Tensor, block_entries: int) -> Tensor:
    """See core/ops/aux_map_entries.py."""
    _shapes.require("aux.map_entries", slot=(slot, entries.shape[:1]))
    out = temporary.empty(entries.shape, dtype=torch.int32)
    native.run("aux_map_entries", entries, slot, table, out, *entries.shape, *table.shape, block_entries)
    return out


OPS: dict[str, Any] = {"aux.map_entries": map_entries}

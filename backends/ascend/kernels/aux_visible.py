"""`aux.visible`: a SIMT thread takes a row."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def visible(positions: Tensor, slot: Tensor, ratio: int) -> Tensor:
    """See core/ops/aux_visible.py."""
    out = torch.empty_like(positions)
    native.run("aux_visible", positions, slot, out, positions.shape[0], ratio)
    return out


def _plan(device: Device, positions: Tensor, slot: Tensor, ratio: int) -> list[Plan]:
    """Position and slot of each row."""
    rows = positions.shape[0]
    return _grid.plan(device, rows, rows * 8, rows * 4)


OPS: dict[str, Any] = {"aux.visible": visible}
PLAN: dict[str, Any] = {"aux.visible": _plan}

"""`aux.group_start`: a SIMT thread takes a row."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def group_start(positions: Tensor, ratio: int) -> Tensor:
    """See core/ops/aux_group_start.py."""
    out = torch.empty_like(positions)
    native.run("aux_group_start", positions, out, positions.shape[0], ratio)
    return out


def _plan(device: Device, positions: Tensor, ratio: int) -> list[Plan]:
    """Position of each row."""
    rows = positions.shape[0]
    return _grid.plan(device, rows, rows * 4, rows * 4)


OPS: dict[str, Any] = {"aux.group_start": group_start}
PLAN: dict[str, Any] = {"aux.group_start": _plan}

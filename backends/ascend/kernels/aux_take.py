"""`aux.take`: a SIMT thread takes one index."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def take(a: Tensor, index: Tensor) -> Tensor:
    """See core/ops/aux_take.py."""
    rows, wanted = index.shape
    out = torch.empty_like(index)
    native.run("aux_take", a, index, out, rows, a.shape[1], wanted)
    return out


def _plan(device: Device, a: Tensor, index: Tensor) -> list[Plan]:
    """The index once, and what it picks."""
    return _grid.plan(device, index.numel(), index.numel() * 8, index.numel() * 4)


OPS: dict[str, Any] = {"aux.take": take}
PLAN: dict[str, Any] = {"aux.take": _plan}

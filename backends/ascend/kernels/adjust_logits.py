"""`adjust_logits`: see csrc/ascend/adjust_logits.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.kernels._strided import with_stride
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def adjust_logits(logits: Tensor, row: Tensor, token: Tensor, value: Tensor) -> None:
    """See core/ops/adjust_logits.py."""
    line, stride = with_stride(logits)
    native.run("adjust_logits", line, row, token, value, row.shape[0], stride)


def _plan(device: Device, logits: Tensor, row: Tensor, **others: Any) -> list[Plan]:
    """Three words an entry and a logit; that each block looks through the list is left to the cache."""
    entries = row.shape[0]
    return _grid.plan(device, entries, entries * 16, entries * 4)


OPS: dict[str, Any] = {"adjust_logits": adjust_logits}
PLAN: dict[str, Any] = {"adjust_logits": _plan}

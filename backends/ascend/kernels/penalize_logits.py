"""`penalize_logits`: see csrc/ascend/penalize_logits.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.accelerator.strided import with_stride
from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def penalize_logits(logits: Tensor, row: Tensor, token: Tensor, repetition: Tensor, minus: Tensor) -> None:
    """See core/ops/penalize_logits.py."""
    line, stride = with_stride(logits)
    native.run("penalize_logits", line, row, token, repetition, minus, row.shape[0], stride)


def _plan(device: Device, logits: Tensor, row: Tensor, **others: Any) -> list[Plan]:
    """Four words an entry and a logit, without padding, which is the most."""
    entries = row.shape[0]
    return _grid.plan(device, entries, entries * 20, entries * 4)


OPS: dict[str, Any] = {"penalize_logits": penalize_logits}
PLAN: dict[str, Any] = {"penalize_logits": _plan}

"""`adjust_logits`: see csrc/ascend/adjust_logits.cpp."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tandem.accelerator.strided import with_stride
from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def adjust_logits(logits: Tensor, row: Tensor, token: Tensor, value: Tensor) -> None:
    """See core/ops/adjust_logits.py."""
    line, stride = with_stride(logits)
    native.run("adjust_logits", line, row, token, value, row.shape[0], stride)


def _plan(device: Device, logits: Tensor, row: Tensor, **others: Any) -> list[Plan]:
    """Three words an entry and a logit; that each block looks through the list is left to the cache.

    Blocks hold a part of the list in UB, in which each entry is compared with all, as if rows were in no order.
    """
    entries = row.shape[0]
    blocks, part = -(-entries // _grid.THREADS), 4 * _grid.THREADS
    ub = blocks * (blocks + 1) * 3 * part + entries * blocks * part
    return [replace(plan, ub=ub) for plan in _grid.plan(device, entries, entries * 16, entries * 4)]


OPS: dict[str, Any] = {"adjust_logits": adjust_logits}
PLAN: dict[str, Any] = {"adjust_logits": _plan}

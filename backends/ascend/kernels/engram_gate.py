"""`engram_gate`: see csrc/ascend/engram_gate.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _rows
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def engram_gate(trunk: Tensor, kv: Tensor, qk: Tensor, eps: float, roles: Tensor) -> Tensor:
    """See core/ops/engram_gate.py."""
    rows, m, width = trunk.shape
    updated = torch.empty_like(trunk)
    native.run("engram_gate", trunk, kv, qk, roles, updated, rows, m, width, eps)
    return updated


def _plan(device: Device, trunk: Tensor, kv: Tensor, qk: Tensor, eps: float, roles: Tensor) -> list[Plan]:
    """Blocks of all streams read a row's value at about the same time; each reads the weights of a stream."""
    rows, m, width = trunk.shape
    tasks, step = rows * m, _rows.steps(width) * _rows.STEP
    read = 2 * (trunk.numel() + kv.numel()) + 4 * (qk.numel() + roles.numel())
    copied = tasks * (width * 2 * 4 + 4) + min(tasks, device.vector_cores) * width * 4
    ub = copied + tasks * (step * (2 * 4 + 4) + width * 2)
    return _rows.plan(device, tasks, read, 2 * trunk.numel(), ub)


OPS: dict[str, Any] = {"engram_gate": engram_gate}
PLAN: dict[str, Any] = {"engram_gate": _plan}

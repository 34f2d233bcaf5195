"""`moe_combine`: see csrc/ascend/moe_combine.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _tiles
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import MoEBatch

Tensor = torch.Tensor
BESIDE = 10240  # bytes of UB for ids and the system
UNIT = 128  # bytes of bf16 that fill a register as f32


def moe_combine(y: Tensor, batch: MoEBatch, shared: Tensor | None) -> Tensor:
    """See core/ops/moe_combine.py."""
    (rows, k), width = batch.source.shape, y.shape[1]
    out = torch.empty((rows, width), dtype=torch.bfloat16, device=y.device)
    piece = _piece(_tiles.device(y), rows, width, k)
    native.run("moe_combine", y, batch.source, shared, out, rows, width, k, piece)
    return out


def _piece(device: Device, rows: int, width: int, k: int) -> int:
    """All terms of a piece and its sum, twice."""
    return _tiles.piece(device, rows, 2 * width, 2 * (k + 2), BESIDE, UNIT)


def _plan(device: Device, y: Tensor, batch: MoEBatch, shared: Tensor | None) -> list[Plan]:
    """Every row of experts once, as if all were held here."""
    (rows, k), width = batch.source.shape, y.shape[1]
    tasks = rows * -(-2 * width // _piece(device, rows, width, k))
    terms, ids, out = rows * width * 2 * (k + (shared is not None)), rows * k * 4, rows * width * 2
    return _tiles.plan(device, tasks, terms + ids, out, 2 * (terms + ids + out))


OPS: dict[str, Any] = {"moe_combine": moe_combine}
PLAN: dict[str, Any] = {"moe_combine": _plan}

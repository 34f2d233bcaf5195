"""`moe_combine`: see csrc/ascend/moe_combine.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import MoEBatch

Tensor = torch.Tensor
LANES = 64  # f32 numbers of a register
IDS = 8192  # bytes of ids that UB holds
FEW = 512  # columns that parts of rows are not cut below


def moe_combine(y: Tensor, batch: MoEBatch, shared: Tensor | None) -> Tensor:
    """See core/ops/moe_combine.py."""
    (rows, k), width = batch.source.shape, y.shape[1]
    out = torch.empty((rows, width), dtype=torch.bfloat16, device=y.device)
    native.run("moe_combine", y, batch.source, shared, out, rows, width, k)
    return out


def _columns(device: Device, rows: int, width: int, k: int) -> int:
    """Columns of a task, as the kernel cuts them."""
    most = (device.ub_bytes - IDS) // (4 * (k + 2)) // LANES * LANES
    columns = min(-(-width // LANES) * LANES, most)
    while columns >= 2 * FEW and rows * -(-width // columns) < device.vector_cores:
        columns = -(-(columns // 2) // LANES) * LANES
    return columns


def _plan(device: Device, y: Tensor, batch: MoEBatch, shared: Tensor | None) -> list[Plan]:
    """Every row of experts once, as if all were held here."""
    (rows, k), width = batch.source.shape, y.shape[1]
    if not rows:
        return []
    tasks = rows * -(-width // _columns(device, rows, width, k))
    terms, ids, out = rows * width * 2 * (k + (shared is not None)), rows * k * 4, rows * width * 2
    blocks = min(tasks, device.vector_cores)
    return [Plan("vector", tasks, blocks, terms + ids, out, ub=2 * (terms + ids + out))]


OPS: dict[str, Any] = {"moe_combine": moe_combine}
PLAN: dict[str, Any] = {"moe_combine": _plan}

"""`moe_dispatch`: see csrc/ascend/moe_dispatch.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import activations, native
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import MoEBatch, QFormat, QTensor

Tensor = torch.Tensor
THREADS, SUMS = 1024, 8448  # of a block; bytes that two sums over them pass through UB


def moe_dispatch(xq: QTensor, experts: Tensor, weights: Tensor, row_slot: Tensor, local: tuple[int, int]) -> MoEBatch:
    """See core/ops/moe_dispatch.py.  Rows past the last end hold anything."""
    xq.require("moe_dispatch", QFormat.MXFP8, activations.LAYOUT)
    (rows, k), width, device = experts.shape, xq.shape[1], experts.device
    first, count = local[0], local[1] - local[0]
    source = torch.empty((rows, k), dtype=torch.int32, device=device)
    ends = torch.empty((count,), dtype=torch.int32, device=device)
    sorted_weights = torch.empty((rows * k,), dtype=torch.float32, device=device)
    to = activations.empty(rows * k, width, device)
    outputs = (to.data, to.scale, sorted_weights, ends, source)
    sizes = (rows, width, xq.scale.shape[1], k, first, count)
    native.run("moe_dispatch", xq.data, xq.scale, experts, weights, row_slot, *outputs, *sizes)
    return MoEBatch(to, sorted_weights, ends, source)


def _plan(device: Device, xq: QTensor, experts: Tensor, local: tuple[int, int], **others: Any) -> list[Plan]:
    """As if all pairs stayed here.  Every block reads all ids at the same time, and its own once more."""
    (rows, k), count = experts.shape, local[1] - local[0]
    row = xq.shape[1] + xq.scale.shape[1]
    ids, blocks = rows * (4 * k + 4), max(1, min(rows, device.vector_cores))
    read = ids + rows * (k * 4 + row)
    written = rows * k * (row + 8) + count * 4
    # Rows in and out; counters and sums of each block; owners and places of pairs, which all experts go through.
    counted = blocks * (4 * (5 * count + 2 * rows * k) + -(-count // THREADS) * SUMS) + 8 * rows * k
    placed = rows * k * (4 * count + 20)
    return [Plan("vector", rows, blocks, read, written, ub=rows * row * (1 + k) + counted + placed)]


OPS: dict[str, Any] = {"moe_dispatch": moe_dispatch}
PLAN: dict[str, Any] = {"moe_dispatch": _plan}

"""`draft_heads`: the product of the Markov head is that of `linear`; see csrc/ascend/draft_heads.cpp for the rest."""

from __future__ import annotations

from typing import Any

import torch

from tandem.accelerator.strided import with_stride
from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid, linear
from tandem.backends.ascend.plan import Device, Plan
from tandem.backends.ascend.weights import PLAIN, unreadable
from tandem.contract.types import PackedWeight, QFormat

Tensor = torch.Tensor
WARPS = _grid.THREADS // 32
SUM_UB = 8 * WARPS * (WARPS + 1)  # bytes of UB that a sum over a block takes


def draft_heads(
    base: Tensor,
    hidden: Tensor,
    previous: Tensor,
    embedding: PackedWeight,
    head: PackedWeight,
    proj: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """See core/ops/draft_heads.py."""
    for weight in (embedding, head):
        if weight.layout != PLAIN or weight.fmt is not QFormat.BF16:
            raise unreadable("draft_heads", weight)
    (rows, width), rank = hidden.shape, head.shape[1]
    embedded = torch.empty((rows, rank), dtype=torch.bfloat16, device=base.device)
    confidence = torch.empty(rows, dtype=torch.float32, device=base.device)
    line, stride = with_stride(hidden)
    sizes = (rows, width, rank, stride, float(temperature))
    native.run("draft_heads_before", line, previous, embedding.token, proj, embedded, confidence, *sizes)
    logits = linear.linear(embedded, head, torch.float32)
    line, stride = with_stride(base)
    native.run("draft_heads_after", line, previous, logits, *base.shape, stride)
    return logits, confidence


def _plan(device: Device, base: Tensor, hidden: Tensor, head: PackedWeight, proj: Tensor, **others: Any) -> list[Plan]:
    """The product is written and read once more than it would be if the base were added to it at once."""
    (rows, vocab), rank = base.shape, head.shape[1]
    if not rows:
        return []
    read = rows * (hidden.shape[1] + rank) * 2 + proj.numel() * 4 + rows * 4
    written = rows * (rank * 2 + 4)
    before = Plan("vector", rows, min(rows, device.vector_cores), read, written, rows * SUM_UB)
    embedded = torch.empty((rows, rank), dtype=torch.bfloat16, device="meta")
    product = linear.PLAN["linear"](device, embedded, head, torch.float32)
    return [before, *product, *_grid.plan(device, rows * vocab, rows * vocab * 8 + rows * 4, rows * vocab * 4)]


OPS: dict[str, Any] = {"draft_heads": draft_heads}
PLAN: dict[str, Any] = {"draft_heads": _plan}
WHY: dict[str, str] = {
    "draft_heads": "the product is written and read again before the base is added: cubes multiply, vector cores add"
}

"""`moe_combine`: a program gathers one part of a token's expert rows and sums them in the order of k."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch
from tandem.contract.types import MoEBatch

Tensor = torch.Tensor
COLUMNS = 1024  # of a row that one program sums: 16 bytes a thread


@triton.jit
def _combine(y, source, shared, out, width, K: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of experts that are held elsewhere are not read; they add nothing."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    total = tl.zeros((COLUMNS,), tl.float32)
    for i in tl.static_range(K):
        place = tl.load(source + token * K + i).to(tl.int64)
        here = column < tl.where(place >= 0, width, 0)
        total += tl.load(y + place * width + column, mask=here, other=0.0).to(tl.float32)
    if shared is not None:
        total += tl.load(shared + token * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, total.to(tl.bfloat16), mask=inside)


def moe_combine(y: Tensor, batch: MoEBatch, shared: Tensor | None) -> Tensor:
    """See core/ops/moe_combine.py."""
    (rows, k), width = batch.source.shape, y.shape[1]
    out = torch.empty((rows, width), dtype=torch.bfloat16, device=y.device)
    grid = (rows, triton.cdiv(width, COLUMNS))
    launch(_combine, grid, y, batch.source, shared, out, width, K=k, COLUMNS=COLUMNS)
    return out


def _traffic(y: Tensor, batch: MoEBatch, shared: Tensor | None) -> tuple[int, int]:
    """Every row of experts once, as if all were held here."""
    (rows, k), width = batch.source.shape, y.shape[1]
    return rows * (k * width * 2 + k * 4) + (0 if shared is None else rows * width * 2), rows * width * 2


OPS: dict[str, Any] = {"moe_combine": moe_combine}
TRAFFIC: dict[str, Any] = {"moe_combine": _traffic}

"""`engram_gate`: a program per stream of a row, which is read once and stays in registers."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels import _rows
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor


@triton.jit
def _engram_gate(trunk, kv, qk, roles, updated, eps, WIDTH: tl.constexpr, M: tl.constexpr, COLUMNS: tl.constexpr):
    """One stream of one row; the streams of a row run side by side and share its value in the cache."""
    stream, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < WIDTH
    place = (row * M + stream) * WIDTH + column
    before = tl.load(trunk + place, mask=inside, other=0.0)
    if tl.load(roles + row) == 0:
        memory = kv + row * ((M + 1) * WIDTH) + column
        h = before.to(tl.float32)
        key = tl.load(memory + stream * WIDTH, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(qk + stream * WIDTH + column, mask=inside, other=0.0)
        value = tl.load(memory + M * WIDTH, mask=inside, other=0.0).to(tl.float32)
        size = tl.sqrt_rn(tl.sum(h * h, axis=0) / WIDTH + eps) * tl.sqrt_rn(tl.sum(key * key, axis=0) / WIDTH + eps)
        score = tl.div_rn(tl.sum(h * weight * key, axis=0), size * tl.sqrt_rn(WIDTH * 1.0))
        h += gate(score) * value
        tl.store(updated + place, h.to(tl.bfloat16), mask=inside)
    else:
        tl.store(updated + place, before, mask=inside)


@triton.jit
def gate(score):
    """sigmoid of the signed square root of |score|, which counts as at least 1e-6; NaN stays NaN."""
    size = tl.abs(score)
    root = tl.sqrt_rn(tl.where(size < 1e-6, 1e-6, size))
    negative = score.to(tl.int32, bitcast=True) < 0
    return tl.div_rn(1.0, 1.0 + tl.exp(tl.where(negative, root, -root)))


def engram_gate(trunk: Tensor, kv: Tensor, qk: Tensor, eps: float, roles: Tensor) -> Tensor:
    """See core/ops/engram_gate.py."""
    rows, m, width = trunk.shape
    updated = torch.empty_like(trunk)
    columns = _rows.whole(width)[1]
    launch(
        _engram_gate,
        (m, rows),
        *(trunk, kv, qk, roles, updated, eps),
        **{"WIDTH": width, "M": m, "COLUMNS": columns, "num_warps": _rows.warps(1, columns)},
    )
    return updated


def _traffic(trunk: Tensor, kv: Tensor, qk: Tensor, eps: float, roles: Tensor) -> tuple[int, int]:
    """Everything is read once: a row's value comes from the cache after its first stream, and so do the weights."""
    return 2 * (trunk.numel() + kv.numel()) + 4 * (qk.numel() + roles.numel()), 2 * trunk.numel()


OPS: dict[str, Any] = {"engram_gate": engram_gate}
TRAFFIC: dict[str, Any] = {"engram_gate": _traffic}

"""`aux.visible`: a program takes a run of rows."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
ROWS = 128


@triton.jit
def _visible(positions, slot, out, rows, RATIO: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    position = tl.load(positions + row, mask=inside, other=0)
    request = tl.load(slot + row, mask=inside, other=-1)
    tl.store(out + row, tl.where(request >= 0, (position + 1) // RATIO, 0), mask=inside)


def visible(positions: Tensor, slot: Tensor, ratio: int) -> Tensor:
    """See core/ops/aux_visible.py."""
    rows = positions.shape[0]
    out = torch.empty_like(positions)
    launch(_visible, (triton.cdiv(rows, ROWS),), positions, slot, out, rows, RATIO=ratio, ROWS=ROWS)
    return out


def _traffic(positions: Tensor, slot: Tensor, ratio: int) -> tuple[int, int]:
    """Position and slot of each row."""
    return positions.shape[0] * 8, positions.shape[0] * 4


OPS: dict[str, Any] = {"aux.visible": visible}
TRAFFIC: dict[str, Any] = {"aux.visible": _traffic}

"""`aux.group_start`: a program takes a run of rows."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
ROWS = 128


@triton.jit
def _group_start(positions, out, rows, RATIO: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    position = tl.load(positions + row, mask=row < rows, other=0)
    tl.store(out + row, position - position % RATIO, mask=row < rows)


def group_start(positions: Tensor, ratio: int) -> Tensor:
    """See core/ops/aux_group_start.py."""
    rows = positions.shape[0]
    out = torch.empty_like(positions)
    launch(_group_start, (triton.cdiv(rows, ROWS),), positions, out, rows, RATIO=ratio, ROWS=ROWS)
    return out


def _traffic(positions: Tensor, ratio: int) -> tuple[int, int]:
    """Position of each row."""
    return positions.shape[0] * 4, positions.shape[0] * 4


OPS: dict[str, Any] = {"aux.group_start": group_start}
TRAFFIC: dict[str, Any] = {"aux.group_start": _traffic}

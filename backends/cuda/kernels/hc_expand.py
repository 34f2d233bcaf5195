"""`hc_expand`: a program reads a piece of a row once and writes it into all streams."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
BLOCK = 1024


@triton.jit
def _hc_expand(x, trunk, width, M: tl.constexpr, COLUMNS: tl.constexpr):
    """COLUMNS columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    value = tl.load(x + row * width + column, mask=inside, other=0.0)
    for i in tl.static_range(M):
        tl.store(trunk + (row * M + i) * width + column, value, mask=inside)


def hc_expand(x: Tensor, m: int) -> Tensor:
    """See core/ops/hc_expand.py."""
    rows, width = x.shape
    trunk = x.new_empty((rows, m, width))
    launch(_hc_expand, (rows, -(-width // BLOCK)), x, trunk, width, M=m, COLUMNS=BLOCK, num_warps=4)
    return trunk


def _traffic(x: Tensor, m: int) -> tuple[int, int]:
    """Each row is read once and written m times."""
    return 2 * x.numel(), 2 * x.numel() * m


OPS: dict[str, Any] = {"hc_expand": hc_expand}
TRAFFIC: dict[str, Any] = {"hc_expand": _traffic}

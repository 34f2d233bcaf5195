"""`rope` as one kernel: the heads of a row side by side, pairs rotated in registers."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels import _rows
from tandem.backends.cuda.kernels._rows import place, rotate
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor


@triton.jit
def _rope(
    x,
    cos_sin,
    y,
    rows,
    INVERSE: tl.constexpr,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    ROPE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """A program takes C columns, of any heads, of R rows; cosines and sines that heads share come from the cache."""
    row, column = place(R, C)
    inside = (row < rows) & (column < WIDTH)
    value = tl.load(x + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    turned = rotate(value, cos_sin, row, row < rows, tl.program_id(1) * C, DIM, ROPE, INVERSE)
    tl.store(y + row * WIDTH + column, turned.to(tl.bfloat16), mask=inside)


def rope(x: Tensor, cos_sin: Tensor, inverse: bool = False) -> Tensor:
    """See core/ops/rope.py."""
    y = torch.empty_like(x)
    rows, heads, dim = x.shape
    width, split = heads * dim, _rows.tile(heads * dim)
    shape = (inverse, width, dim, cos_sin.shape[1], *split)
    launch(_rope, _rows.grid(rows, width, split), x, cos_sin, y, rows, *shape)
    return y


def _traffic(x: Tensor, cos_sin: Tensor, inverse: bool = False) -> tuple[int, int]:
    return x.numel() * 2 + cos_sin.numel() * 4, x.numel() * 2


OPS: dict[str, Any] = {"rope": rope}
TRAFFIC: dict[str, Any] = {"rope": _traffic}

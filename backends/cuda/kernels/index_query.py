"""`index_query` as one kernel: rotation and quantisation of the indexer's queries in registers."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda import activations
from tandem.backends.cuda.kernels import _rows
from tandem.backends.cuda.kernels._rows import place, rotate, store_quantised
from tandem.backends.cuda.launch import launch
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


@triton.jit
def _index_query(
    x,
    cos_sin,
    codes,
    scales,
    rows,
    WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    ROPE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """A program takes C columns, of any heads, of R rows; what is quantised is rounded to bf16 first."""
    row, column = place(R, C)
    value = tl.load(x + row * WIDTH + column, mask=(row < rows) & (column < WIDTH), other=0.0).to(tl.float32)
    turned = rotate(value, cos_sin, row, row < rows, tl.program_id(1) * C, DIM, ROPE, False).to(tl.bfloat16)
    store_quantised(codes, scales, turned.to(tl.float32), row, row < rows, "mxfp4", WIDTH)


def index_query(x: Tensor, heads: int, cos_sin: Tensor) -> QTensor:
    """See core/ops/index_query.py."""
    rows, width = x.shape
    q = activations.quantised(rows, width, QFormat.MXFP4, x.device)
    split = _rows.tile(width)
    shape = (width, width // heads, cos_sin.shape[1], *split)
    launch(_index_query, _rows.grid(rows, width, split), x, cos_sin, *_rows.targets(q), rows, *shape)
    return q


def _traffic(x: Tensor, heads: int, cos_sin: Tensor) -> tuple[int, int]:
    return x.numel() * 2 + cos_sin.numel() * 4, _rows.quantised_bytes(x.numel(), QFormat.MXFP4)


OPS: dict[str, Any] = {"index_query": index_query}
TRAFFIC: dict[str, Any] = {"index_query": _traffic}

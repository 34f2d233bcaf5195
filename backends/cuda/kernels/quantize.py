"""`quantize` as one kernel: a tile of columns per program, encoded in registers."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda import activations
from tandem.backends.cuda.kernels import _rows
from tandem.backends.cuda.kernels._rows import place, store_quantised
from tandem.backends.cuda.launch import launch
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


@triton.jit
def _quantize(x, codes, scales, rows, FMT: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """A program takes R rows of C columns, which are whole groups."""
    row, column = place(R, C)
    value = tl.load(x + row * WIDTH + column, mask=(row < rows) & (column < WIDTH), other=0.0).to(tl.float32)
    store_quantised(codes, scales, value, row, row < rows, FMT, WIDTH)


def quantize(x: Tensor, fmt: QFormat) -> QTensor:
    """See core/ops/quantize.py."""
    rows, width = x.shape
    q = activations.quantised(rows, width, fmt, x.device)
    split = _rows.tile(width)
    launch(_quantize, _rows.grid(rows, width, split), x, *_rows.targets(q), rows, fmt.value, width, *split)
    return q


def _traffic(x: Tensor, fmt: QFormat) -> tuple[int, int]:
    return x.numel() * 2, _rows.quantised_bytes(x.numel(), fmt)


OPS: dict[str, Any] = {"quantize": quantize}
TRAFFIC: dict[str, Any] = {"quantize": _traffic}

"""`gather_rows` as one kernel: rows move as words, whatever they hold."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels import _rows
from tandem.backends.cuda.kernels._rows import place
from tandem.backends.cuda.kernels._words import as_words
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor


@triton.jit
def _gather_rows(x, index, y, rows, WIDTH: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """A program moves C words of each of R rows."""
    row, column = place(R, C)
    inside = (row < rows) & (column < WIDTH)
    source = tl.load(index + row, mask=row < rows, other=-1).to(tl.int64)
    word = tl.load(x + source * WIDTH + column, mask=inside & (source >= 0), other=0)
    tl.store(y + row * WIDTH + column, word, mask=inside)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """See core/ops/gather_rows.py."""
    rows = index.shape[0]
    y = torch.empty((rows, *x.shape[1:]), dtype=x.dtype, device=x.device)
    source, target = as_words("gather_rows", x, y)
    width = source.shape[1]
    split = _rows.narrow(width)
    launch(_gather_rows, _rows.grid(rows, width, split), source, index, target, rows, width, *split)
    return y


def _traffic(x: Tensor, index: Tensor) -> tuple[int, int]:
    moved = index.shape[0] * x[0].numel() * x.element_size()
    return moved + index.numel() * 4, moved


OPS: dict[str, Any] = {"gather_rows": gather_rows}
TRAFFIC: dict[str, Any] = {"gather_rows": _traffic}

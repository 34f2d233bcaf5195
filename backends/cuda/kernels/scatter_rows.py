"""`scatter_rows` as one kernel: rows move as words, whatever they hold."""

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
def _scatter_rows(x, index, values, last, rows, WIDTH: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """A program moves C words of each of R rows; a row without a place goes to the last one, which is scratch."""
    row, column = place(R, C)
    inside = (row < rows) & (column < WIDTH)
    target = tl.load(index + row, mask=row < rows, other=-1).to(tl.int64)
    target = tl.where(target < 0, last, target)
    word = tl.load(values + row * WIDTH + column, mask=inside, other=0)
    tl.store(x + target * WIDTH + column, word, mask=inside)


def scatter_rows(x: Tensor, index: Tensor, values: Tensor) -> None:
    """See core/ops/scatter_rows.py."""
    target, source = as_words("scatter_rows", x, values)
    rows, width = source.shape
    split = _rows.narrow(width)
    programs = _rows.grid(rows, width, split)
    launch(_scatter_rows, programs, target, index, source, x.shape[0] - 1, rows, width, *split)


def _traffic(x: Tensor, index: Tensor, values: Tensor) -> tuple[int, int]:
    moved = values.numel() * values.element_size()
    return moved + index.numel() * 4, moved


OPS: dict[str, Any] = {"scatter_rows": scatter_rows}
TRAFFIC: dict[str, Any] = {"scatter_rows": _traffic}

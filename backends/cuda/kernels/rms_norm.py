"""`rms_norm` as one kernel: rows read once, with the quantised copy written from registers."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda import activations
from tandem.backends.cuda.kernels import _rows
from tandem.backends.cuda.kernels._rows import inverse_size, place, store_quantised
from tandem.backends.cuda.launch import launch
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


@triton.jit
def _rms_norm(
    x,
    weight,
    y,
    codes,
    scales,
    rows,
    eps,
    WIDTH: tl.constexpr,
    C: tl.constexpr,
    PARTS: tl.constexpr,
):
    """A program takes a row, in parts of C columns that all stay in registers from the sum of squares to the result.

    Several short rows in a program would make the compiler give each element of a group to another thread.
    """
    row, column = place(1, C)
    squares = tl.zeros((1, C), tl.float32)
    held = ()
    for part in tl.static_range(PARTS):
        inside = (row < rows) & (part * C + column < WIDTH)
        loaded = tl.load(x + row * WIDTH + (part * C + column), mask=inside, other=0.0)
        held = held + (loaded,)
        squares += loaded.to(tl.float32) * loaded.to(tl.float32)
    factor = inverse_size(squares, eps, WIDTH)
    for part in tl.static_range(PARTS):
        here = part * C + column
        value = held[part].to(tl.float32) * factor
        if weight is not None:
            value = value * tl.load(weight + here, mask=here < WIDTH, other=0.0)
        rounded = value.to(tl.bfloat16)
        tl.store(y + row * WIDTH + here, rounded, mask=(row < rows) & (here < WIDTH))
        if codes is not None:
            store_quantised(codes, scales, rounded.to(tl.float32), row, row < rows, "mxfp8", WIDTH, part)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, quant: bool) -> tuple[Tensor, QTensor | None]:
    """See core/ops/rms_norm.py."""
    rows, width = x.shape
    y = torch.empty_like(x)
    yq = activations.quantised(rows, width, QFormat.MXFP8, x.device) if quant else None
    codes, scales = (None, None) if yq is None else _rows.targets(yq)
    columns, parts = _rows.parts(width)
    tensors = (x, weight, y, codes, scales)
    launch(_rms_norm, (rows, 1), *tensors, rows, eps, width, columns, parts, num_warps=max(1, columns // 256))
    return y, yq


def _traffic(x: Tensor, weight: Tensor | None, eps: float, quant: bool) -> tuple[int, int]:
    """Each row is read once; its weights come from the cache after the first row."""
    rows, width = x.shape
    written = rows * width * 2 + (rows * width + rows * width // 32 if quant else 0)
    return rows * width * 2 + (0 if weight is None else width * 4), written


OPS: dict[str, Any] = {"rms_norm": rms_norm}
TRAFFIC: dict[str, Any] = {"rms_norm": _traffic}

"""`rms_norm` as one kernel: rows read once, with the quantised copy written from registers."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels import _rows
from tandem.backends.cuda.kernels._rows import normalise, place, store_quantised
from tandem.backends.cuda.launch import launch
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


@triton.jit
def _rms_norm(x, weight, y, codes, scales, rows, eps, WIDTH: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """A program takes R whole rows: long rows one by one, short ones several."""
    row, column = place(R, C)
    inside = (row < rows) & (column < WIDTH)
    offset = row * WIDTH + column
    value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    rounded = normalise(value, weight, eps, column, WIDTH).to(tl.bfloat16)
    tl.store(y + offset, rounded, mask=inside)
    if codes is not None:
        store_quantised(codes, scales, rounded.to(tl.float32), row, row < rows, "mxfp8", WIDTH)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, quant: bool) -> tuple[Tensor, QTensor | None]:
    """See core/ops/rms_norm.py."""
    rows, width = x.shape
    y = torch.empty_like(x)
    yq = _rows.quantised(rows, width, QFormat.MXFP8, x.device) if quant else None
    codes, scales = (None, None) if yq is None else _rows.targets(yq)
    split = _rows.whole(width)
    programs = _rows.grid(rows, width, split)
    tensors = (x, weight, y, codes, scales)
    launch(_rms_norm, programs, *tensors, rows, eps, width, *split, num_warps=_rows.warps(*split))
    return y, yq


def _traffic(x: Tensor, weight: Tensor | None, eps: float, quant: bool) -> tuple[int, int]:
    """Each row is read once; its weights come from the cache after the first row."""
    rows, width = x.shape
    written = rows * width * 2 + (rows * width + rows * width // 32 if quant else 0)
    return rows * width * 2 + (0 if weight is None else width * 4), written


OPS: dict[str, Any] = {"rms_norm": rms_norm}
TRAFFIC: dict[str, Any] = {"rms_norm": _traffic}

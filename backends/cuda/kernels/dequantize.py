"""`dequantize` as one kernel: a tile of columns per program, decoded in registers."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda import activations
from tandem.backends.cuda.kernels import _rows
from tandem.backends.cuda.kernels._codec import sf_offset
from tandem.backends.cuda.kernels._rows import decode, place
from tandem.backends.cuda.launch import launch
from tandem.contract.types import CANONICAL, QFormat, QTensor

Tensor = torch.Tensor


@triton.jit
def _dequantize(codes, scales, x, rows, FMT: tl.constexpr, WIDTH: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """A program takes R rows of C columns, which are whole groups."""
    row, column = place(R, C)
    share: tl.constexpr = 1 if FMT == "mxfp8" else 2
    size: tl.constexpr = 16 if FMT == "nvfp4" else 32
    byte = tl.program_id(1) * (C // share) + tl.arange(0, C // share)[None, :]
    code = tl.load(codes + row * (WIDTH // share) + byte, mask=(row < rows) & (byte < WIDTH // share), other=0)
    group = tl.program_id(1) * (C // size) + tl.arange(0, C // size)[None, :]
    groups: tl.constexpr = WIDTH // size
    at = sf_offset(row, group, groups) if FMT == "mxfp8" else row * groups + group
    scale = tl.load(scales + at, mask=(row < rows) & (group < groups), other=0)
    value = decode(code, scale, FMT).to(tl.bfloat16)
    tl.store(x + row * WIDTH + column, value, mask=(row < rows) & (column < WIDTH))


def dequantize(q: QTensor) -> Tensor:
    """See core/ops/dequantize.py."""
    q.require("dequantize", q.fmt, activations.LAYOUT if q.fmt is QFormat.MXFP8 else CANONICAL)
    rows, width = q.shape
    x = torch.empty((rows, width), dtype=torch.bfloat16, device=q.data.device)
    split = _rows.tile(width)
    launch(_dequantize, _rows.grid(rows, width, split), q.data, q.scale, x, rows, q.fmt.value, width, *split)
    return x


def _traffic(q: QTensor) -> tuple[int, int]:
    rows, width = q.shape
    return _rows.quantised_bytes(rows * width, q.fmt), rows * width * 2


OPS: dict[str, Any] = {"dequantize": dequantize}
TRAFFIC: dict[str, Any] = {"dequantize": _traffic}

"""`swiglu_quant` as one kernel: clamp, product, routing weight and quantisation in registers."""

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
def _swiglu_quant(gate, up, weight, codes, scales, rows, limit, WIDTH: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """A program takes R rows of C columns; the product stays f32 until it is quantised."""
    row, column = place(R, C)
    inside = (row < rows) & (column < WIDTH)
    offset = row * WIDTH + column
    g = tl.load(gate + offset, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + offset, mask=inside, other=0.0).to(tl.float32)
    g = tl.minimum(g, limit, propagate_nan=tl.PropagateNan.ALL)
    u = tl.clamp(u, -limit, limit, propagate_nan=tl.PropagateNan.ALL)
    value = g / (1.0 + tl.exp(-g)) * u
    if weight is not None:
        value = value * tl.load(weight + row, mask=row < rows, other=0.0)
    store_quantised(codes, scales, value, row, row < rows, "mxfp8", WIDTH)


def swiglu_quant(gate: Tensor, up: Tensor, limit: float, weight: Tensor | None = None) -> QTensor:
    """See core/ops/swiglu_quant.py."""
    rows, width = gate.shape
    q = activations.quantised(rows, width, QFormat.MXFP8, gate.device)
    split = _rows.tile(width)
    programs = _rows.grid(rows, width, split)
    launch(_swiglu_quant, programs, gate, up, weight, *_rows.targets(q), rows, limit, width, *split)
    return q


def _traffic(gate: Tensor, weight: Tensor | None = None, **others: Any) -> tuple[int, int]:
    weights = 0 if weight is None else weight.numel() * 4
    return gate.numel() * 4 + weights, _rows.quantised_bytes(gate.numel(), QFormat.MXFP8)


OPS: dict[str, Any] = {"swiglu_quant": swiglu_quant}
TRAFFIC: dict[str, Any] = {"swiglu_quant": _traffic}

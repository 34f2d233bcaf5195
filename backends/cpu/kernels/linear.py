"""`linear`: see csrc/cpu/ops/linear.cpp, and linear_f32.cpp for f32 weights."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native, temporary, weights
from tandem.backends.cpu.kernels import _products
from tandem.contract.types import PackedWeight, QFormat, QTensor

Tensor = torch.Tensor
_RESULTS = {torch.bfloat16: QFormat.BF16, torch.float32: QFormat.F32}


def linear(x: Tensor | QTensor, weight: PackedWeight, out_dtype: torch.dtype) -> Tensor:
    """See core/ops/linear.py."""
    held = weights.stored("linear", weight)
    outputs, depth = weight.shape
    data, scale, form = _products.operand("linear", x, depth)
    rows = x.shape[0]
    y = temporary.empty((rows, outputs), dtype=out_dtype)
    result = activations.FORMATS[_RESULTS[out_dtype]]
    if weight.fmt is QFormat.F32:
        native.run("linear_f32", data, scale, held.data, y, rows, depth, outputs, form, result)
        return y
    room = _products.room(rows, depth)
    formats = form, activations.FORMATS[weight.fmt], result
    native.run("linear", data, scale, held.data, held.scale, y, room, rows, depth, outputs, *formats)
    return y


OPS: dict[str, Any] = {"linear": linear}

"""`grouped_linear`: see csrc/cpu/ops/grouped_linear.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native, temporary, weights
from tandem.backends.cpu.kernels import _products
from tandem.contract.types import PackedWeight, QFormat, QTensor

Tensor = torch.Tensor
# Rows arranged at a time: a prompt's go to several experts each, and all of them arranged are its largest array.
PART = 512


def grouped_linear(x: QTensor, weight: PackedWeight, ends: Tensor) -> Tensor:
    """See core/ops/grouped_linear.py."""
    held = weights.stored("grouped_linear", weight)
    experts, outputs, depth = weight.shape
    x.require("grouped_linear", QFormat.MXFP8)
    data, scale, _ = _products.operand("grouped_linear", x, depth)
    rows = x.shape[0]
    part = max(1, min(rows, PART))
    y, room = temporary.empty((rows, outputs), dtype=torch.bfloat16), _products.room(part, depth)
    sizes = rows, experts, depth, outputs, activations.FORMATS[weight.fmt], part
    native.run("grouped_linear", data, scale, held.data, held.scale, ends, y, room, *sizes)
    return y


OPS: dict[str, Any] = {"grouped_linear": grouped_linear}

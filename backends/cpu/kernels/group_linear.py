"""`group_linear`: see csrc/cpu/ops/group_linear.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native, temporary, weights
from tandem.backends.cpu.kernels import _products
from tandem.contract.types import PackedWeight, QTensor

Tensor = torch.Tensor


def group_linear(x: QTensor, weight: PackedWeight) -> Tensor:
    """See core/ops/group_linear.py."""
    held = weights.stored("group_linear", weight)
    groups, outputs, depth = weight.shape
    data, scale, form = _products.operand("group_linear", x, groups * depth)
    rows = x.shape[0]
    y = temporary.empty((rows, groups * outputs), dtype=torch.bfloat16)
    room = _products.room(rows * groups, depth)
    sizes = rows, groups, depth, outputs, form, activations.FORMATS[weight.fmt]
    native.run("group_linear", data, scale, held.data, held.scale, y, room, *sizes)
    return y


OPS: dict[str, Any] = {"group_linear": group_linear}

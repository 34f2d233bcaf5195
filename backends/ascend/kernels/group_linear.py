"""`group_linear`: see csrc/ascend/group_linear.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import activations, native, scales
from tandem.backends.ascend.kernels import _products
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import PackedWeight, QTensor

Tensor = torch.Tensor


def group_linear(x: QTensor, weight: PackedWeight) -> Tensor:
    """See core/ops/group_linear.py."""
    groups, outputs, depth = weight.shape
    activations.check_operand("group_linear", x, groups * depth)
    _products.check_depth("group_linear", groups * depth)
    token, rows = _products.scaled("group_linear", weight), x.shape[0]
    y = torch.empty((rows, groups * outputs), dtype=torch.bfloat16, device=x.data.device)
    scale = _scales(x, groups, depth)
    native.run("group_linear", x.data, scale, token.codes, token.scale, y, rows, groups, outputs, depth)
    return y


def _scales(x: QTensor, groups: int, depth: int) -> Tensor:
    """Scales whose pairs end where a group of channels ends."""
    if depth % 64 == 0:
        return x.scale
    plain = scales.unpack(x.scale, x.shape[0], x.shape[1] // x.fmt.group)
    return scales.pack(plain.unflatten(-1, (groups, -1)))


def _plan(device: Device, x: QTensor, weight: PackedWeight) -> list[Plan]:
    """Every group of x times its matrix."""
    groups, outputs, depth = weight.shape
    product = _products.Product(groups, x.shape[0], outputs, depth, 1, 2, True)
    shape = _products.tile(device, x.shape[0], outputs, groups)
    number = _products.tasks(product, shape)
    return _products.plan(product, shape, "cube", number, min(number, device.cube_cores))


OPS: dict[str, Any] = {"group_linear": group_linear}
PLAN: dict[str, Any] = {"group_linear": _plan}

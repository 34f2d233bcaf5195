"""`grouped_linear`: see csrc/ascend/grouped_linear.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import activations, native
from tandem.backends.ascend.kernels import _products
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import PackedWeight, QFormat, QTensor

Tensor = torch.Tensor


def grouped_linear(x: QTensor, weight: PackedWeight, ends: Tensor) -> Tensor:
    """See core/ops/grouped_linear.py."""
    experts, outputs, depth = weight.shape
    activations.check_operand("grouped_linear", x, depth)
    _products.check_depth("grouped_linear", depth)
    token, rows = _products.scaled("grouped_linear", weight), x.shape[0]
    y = torch.empty((rows, outputs), dtype=torch.bfloat16, device=x.data.device)
    entry = "grouped_linear_mx4" if weight.fmt is QFormat.MXFP4 else "grouped_linear_mx8"
    native.run(entry, x.data, x.scale, token.codes, token.scale, ends, y, rows, experts, outputs, depth, 0)
    return y


def _plan(device: Device, x: QTensor, weight: PackedWeight, ends: Tensor) -> list[Plan]:
    """Experts as they have rows when these are spread at random."""
    (experts, outputs, depth), rows = weight.shape, x.shape[0]
    if not rows:
        return []
    used = max(1, round(experts * (1.0 - (1.0 - 1.0 / experts) ** rows)))
    average, most = -(-rows // experts), min(experts, rows)
    shape = _products.tile(device, min(rows, 4 * average), outputs, most)
    fed = weight.fmt is QFormat.MXFP4
    product = _products.Product(used, -(-rows // used), outputs, depth, 1, 2, True, fed)
    bound = (-(-rows // shape[0]) + most - 1) * -(-outputs // shape[1])
    blocks = min(bound, device.cube_cores)
    return _products.plan(product, shape, "mixed", max(blocks, _products.tasks(product, shape)), blocks)


OPS: dict[str, Any] = {"grouped_linear": grouped_linear}
PLAN: dict[str, Any] = {"grouped_linear": _plan}

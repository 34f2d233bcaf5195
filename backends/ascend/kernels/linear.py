"""`linear`: see csrc/ascend/linear.cpp, and grouped_linear.cpp for fp4 weights.

Pairs of formats that no layer of the model has are decoded first, to bf16 where that is exact, else to f32.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import activations, native, scales, weights
from tandem.backends.ascend.kernels import _products
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import PackedWeight, QFormat, QTensor
from tandem.ops.numerics import decode_rows, decode_weight

Tensor = torch.Tensor
_SCALED = {QFormat.FP8_BLOCK32: "linear_mx8", QFormat.MXFP4: "grouped_linear_mx4"}


def linear(x: Tensor | QTensor, weight: PackedWeight, out_dtype: torch.dtype) -> Tensor:
    """See core/ops/linear.py."""
    activations.check_operand("linear", x, weight.shape[1])
    _products.check_depth("linear", weight.shape[1])
    (rows, depth), outputs = x.shape, weight.shape[0]
    device = x.data.device if isinstance(x, QTensor) else x.device
    y = torch.empty((rows, outputs), dtype=out_dtype, device=device)
    wide = int(out_dtype is torch.float32)
    if isinstance(x, QTensor) and weight.fmt in _SCALED:
        token = _products.scaled("linear", weight)
        operands = (x.data, x.scale, token.codes, token.scale)
        if weight.fmt is QFormat.MXFP4:
            native.run("grouped_linear_mx4", *operands, None, y, rows, 1, outputs, depth, wide)
        else:
            native.run("linear_mx8", *operands, y, rows, outputs, depth, wide)
        return y
    entry, values, matrix = _decoded(x, weight)
    native.run(entry, values, matrix, y, rows, outputs, depth, wide)
    return y


def _decoded(x: Tensor | QTensor, weight: PackedWeight) -> tuple[str, Tensor, Tensor]:
    """The entry for two plain operands, and the operands."""
    wide = weight.fmt is QFormat.F32
    dtype = torch.float32 if wide else torch.bfloat16
    if isinstance(x, QTensor):
        x = decode_rows(x.data, scales.unpack(x.scale, x.shape[0], x.shape[1] // x.fmt.group), x.fmt)
    matrix = weight.token if weight.layout == weights.PLAIN else decode_weight(weights.unpack(weight))
    return "linear_f32" if wide else "linear_bf16", x.to(dtype).contiguous(), matrix.to(dtype).contiguous()


def _plan(device: Device, x: Tensor | QTensor, weight: PackedWeight, out_dtype: torch.dtype) -> list[Plan]:
    """Decoding of pairs without a layer left out."""
    (rows, depth), outputs = x.shape, weight.shape[0]
    scaled = isinstance(x, QTensor) and weight.fmt in _SCALED
    item = 1 if scaled else 4 if weight.fmt is QFormat.F32 else 2
    fed = scaled and weight.fmt is QFormat.MXFP4
    product = _products.Product(1, rows, outputs, depth, item, out_dtype.itemsize, scaled, fed)
    shape = _products.tile(device, rows, outputs, 1)
    number = _products.tasks(product, shape)
    return _products.plan(product, shape, "mixed" if fed else "cube", number, min(number, device.cube_cores))


OPS: dict[str, Any] = {"linear": linear}
PLAN: dict[str, Any] = {"linear": _plan}
WHY: dict[str, str] = {
    "linear": "with many rows the cubes bound the time; rows go by once for each panel of eight tiles of outputs, so "
    "that the weights of a panel are read at about the same time",
}

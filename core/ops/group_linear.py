"""`group_linear`: one product per group of channels, the low-rank output projection.

Args: x mxfp8 [T,G*N], weight[G,N',N] -> [T,G*N'] bf16

Reads x mxfp8 [T, G*K] and weight [G, N, K]; returns bf16 [T, G*N]: group g of x times weight[g] transposed.
Class A.  Row bits do not depend on T.  A NaN in a group of x makes that row of that group NaN only.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import PackedWeight, QFormat, QTensor, WeightKind
from tandem.ops.linear import activation_values
from tandem.ops.numerics import decode_weight, fixed_matmul

Tensor = torch.Tensor


@op("group_linear", classes={"y": "A"}, parts=("unpack_weight", "to_canonical"), attrs=("x", "w", "shape", "layout"))
def group_linear(parts: Any, x: QTensor, weight: PackedWeight) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    values = activation_values(parts, x)
    matrix = decode_weight(parts.unpack_weight(weight))
    depth = matrix.shape[-1]
    columns = [
        fixed_matmul(values[:, g * depth : (g + 1) * depth].contiguous(), matrix[g])
        for g in range(matrix.shape[0])
    ]
    return torch.cat(columns, dim=-1).to(torch.bfloat16)


@case("group_linear", "two-groups", ROWS)
def _two(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    weight = draw.weight(WeightKind.GROUP, QFormat.FP8_BLOCK32, 2, 32, 96)
    return {"x": draw.quantised(QFormat.MXFP8, rows, 192), "weight": weight}


@case("group_linear", "many-terms")
def _deep(seed: int) -> dict[str, Any]:
    """More terms than one tile of a sum holds."""
    draw = Draw(seed)
    weight = draw.weight(WeightKind.GROUP, QFormat.FP8_BLOCK32, 2, 32, 544)
    return {"x": draw.quantised(QFormat.MXFP8, 3, 1088), "weight": weight}


@case("group_linear", "nan-in-one-group")
def _nan(seed: int) -> dict[str, Any]:
    arguments = _two(seed, 3)
    x = arguments["x"]
    x.scale[1, 4], x.data[1, 128:160] = 255, 0x7F  # in the second group
    return arguments

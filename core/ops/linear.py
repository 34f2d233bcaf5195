"""`linear`: x [T, K] times a packed weight [N, K], transposed.

Reads x bf16 [T, K] with a bf16 or f32 weight, or x mxfp8 with an fp8_block32 weight; out_dtype bf16 or f32.
Returns [T, N], f32 accumulation, rounded once.  Class A.  Row bits do not depend on T.
A NaN in a row of x makes that row NaN only.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import op
from tandem.contract.types import PackedWeight, QTensor
from tandem.ops.numerics import decode_rows, decode_weight, fixed_matmul

Tensor = torch.Tensor


@op("linear", classes={"y": "A"}, parts=("unpack_weight", "to_canonical"), attrs=("x", "w", "out", "shape"))
def linear(parts: Any, x: Tensor | QTensor, weight: PackedWeight, out_dtype: torch.dtype) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    values = activation_values(parts, x)
    return fixed_matmul(values, decode_weight(parts.unpack_weight(weight))).to(out_dtype)


def activation_values(parts: Any, x: Tensor | QTensor) -> Tensor:
    """bf16 or quantised rows -> f32 values."""
    if isinstance(x, QTensor):
        plain = parts.to_canonical(x)
        return decode_rows(plain.data, plain.scale, plain.fmt)
    return x.to(torch.float32)

"""`grouped_linear`: each row times the weight of its expert.

Reads x mxfp8 [Te, K] sorted by expert, weight [El, N, K] (mxfp4 or fp8_block32), ends int32 [El] (inclusive prefix sums).
Returns bf16 [Te, N]; rows past ends[-1] are zero.  Experts without rows are skipped.  Class A.  Row bits do not depend
on the other rows.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import op
from tandem.contract.types import CanonicalWeight, PackedWeight, QTensor
from tandem.ops.linear import activation_values
from tandem.ops.numerics import decode_weight, fixed_matmul

Tensor = torch.Tensor


@op("grouped_linear", classes={"y": "A"}, parts=("unpack_weight", "to_canonical"), attrs=("x", "w", "shape"))
def grouped_linear(parts: Any, x: QTensor, weight: PackedWeight, ends: Tensor) -> Tensor:
    """Plain-torch reference: one fixed-shape product per row, with the row's expert gathered on the device."""
    values = activation_values(parts, x)
    stored = parts.unpack_weight(weight)
    index = torch.arange(values.shape[0], device=values.device, dtype=torch.int32)
    expert = torch.searchsorted(ends, index, right=True)
    used = expert < ends.shape[0]
    expert = expert.clamp_max(ends.shape[0] - 1)
    result = values.new_empty((values.shape[0], weight.shape[1]))
    for row in range(values.shape[0]):
        chosen = expert[row : row + 1]
        scale = None if stored.scale is None else stored.scale.index_select(0, chosen)
        matrix = decode_weight(CanonicalWeight(stored.data.index_select(0, chosen), scale, stored.fmt))[0]
        result[row] = fixed_matmul(values[row : row + 1], matrix)[0]
    return torch.where(used.unsqueeze(-1), result, torch.zeros_like(result)).to(torch.bfloat16)

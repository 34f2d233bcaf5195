"""`grouped_linear`: each row times the weight of its expert.

Args: x mxfp8 [Te,N], weight[El,N',N], ends[El] i32 -> [Te,N'] bf16, rows past the end zero

Reads x mxfp8 [Te, K] sorted by expert, weight [El, N, K] (mxfp4 or fp8_block32), ends int32 [El] (inclusive
prefix sums). Returns bf16 [Te, N]; rows past ends[-1] are zero.  Experts without rows are skipped.  Class A.
Row bits do not depend on the other rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, QTensor, WeightKind
from tandem.ops.linear import activation_values
from tandem.ops.numerics import decode_weight, fixed_matmul

Tensor = torch.Tensor


@op("grouped_linear", classes={"y": "A"}, parts=("unpack_weight", "to_canonical"), attrs=("x", "w", "shape", "layout"))
def grouped_linear(parts: Any, x: QTensor, weight: PackedWeight, ends: Tensor) -> Tensor:
    """Plain-torch reference: one fixed-shape product per row, its expert gathered on the device."""
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


@case("grouped_linear", "fp4", ROWS)
def _fp4(seed: int, rows: int) -> dict[str, Any]:
    return _arguments(seed, rows, QFormat.MXFP4)


@case("grouped_linear", "fp8")
def _fp8(seed: int) -> dict[str, Any]:
    return _arguments(seed, 11, QFormat.FP8_BLOCK32)


@case("grouped_linear", "only-unused-rows")
def _none(seed: int) -> dict[str, Any]:
    return _fp4(seed, 4) | {"ends": torch.zeros(5, dtype=torch.int32)}


def _arguments(seed: int, rows: int, fmt: QFormat) -> dict[str, Any]:
    """Five experts, the first and others without rows; from three rows on the last row is unused."""
    draw = Draw(seed)
    used = rows if rows < 3 else rows - 1
    ends = torch.from_numpy(np.concatenate(([0], np.sort(draw.rng.integers(0, used + 1, 3)), [used])))
    return {
        "x": draw.quantised(QFormat.MXFP8, rows, 64),
        "weight": draw.weight(WeightKind.EXPERTS, fmt, 5, 40, 64),
        "ends": ends.to(torch.int32),
    }


@case("grouped_linear", "many-terms")
def _deep(seed: int) -> dict[str, Any]:
    """More terms than one tile of a sum holds."""
    draw = Draw(seed)
    weight = draw.weight(WeightKind.EXPERTS, QFormat.MXFP4, 3, 40, 1056)
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    return {"x": draw.quantised(QFormat.MXFP8, 5, 1056), "weight": weight, "ends": ends}

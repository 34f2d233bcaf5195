"""`moe_experts`: the expert block on dispatched rows.

Args: batch (MoEBatch), w1[El,I,H], w3[El,I,H], w2[El,H,I], limit -> [Te,H] bf16, rows past the end zero

Composite of grouped_linear (w1 gate, w3 up), swiglu_quant (with the routing weight) and grouped_linear (w2).
Reads a `MoEBatch`; returns bf16 [Te, H], zero past ends[-1].  Class A.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import MoEBatch, PackedWeight, QFormat, WeightKind

Tensor = torch.Tensor


@op(
    "moe_experts",
    classes={"y": "A"},
    parts=("grouped_linear", "swiglu_quant"),
    attrs=("x", "w", "shape", "layout"),
    passes=(("grouped_linear", {"x": "x", "w": "w", "shape": "shape", "layout": "layout"}),),
)
def moe_experts(
    parts: Any, batch: MoEBatch, w1: PackedWeight, w3: PackedWeight, w2: PackedWeight, limit: float
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    gate = parts.grouped_linear(batch.x, w1, batch.ends)
    up = parts.grouped_linear(batch.x, w3, batch.ends)
    hidden = parts.swiglu_quant(gate, up, limit, batch.weight)
    del gate, up  # as large as all else together where a prompt runs: not to be held beside the last product
    result: Tensor = parts.grouped_linear(hidden, w2, batch.ends)
    return result


@case("moe_experts", "fp4", ROWS)
def _fp4(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    ends = torch.tensor([0, rows // 2, rows // 2, rows], dtype=torch.int32)
    source = torch.arange(rows, dtype=torch.int32).unsqueeze(-1)
    x = draw.quantised(QFormat.MXFP8, rows, 64)
    return {
        "batch": MoEBatch(x, draw.f32(rows), ends, source),
        "w1": draw.weight(WeightKind.EXPERTS, QFormat.MXFP4, 4, 32, 64),
        "w3": draw.weight(WeightKind.EXPERTS, QFormat.MXFP4, 4, 32, 64),
        "w2": draw.weight(WeightKind.EXPERTS, QFormat.MXFP4, 4, 64, 32),
        "limit": 10.0,
    }


@case("moe_experts", "fp8")
def _fp8(seed: int) -> dict[str, Any]:
    draw = Draw(seed + 1)
    shapes = {"w1": (4, 32, 64), "w3": (4, 32, 64), "w2": (4, 64, 32)}
    weights = {
        name: draw.weight(WeightKind.EXPERTS, QFormat.FP8_BLOCK32, *shape) for name, shape in shapes.items()
    }
    return _fp4(seed, 9) | weights


@case("moe_experts", "clamped")
def _clamped(seed: int) -> dict[str, Any]:
    """A limit that many of the products pass."""
    return _fp4(seed, 5) | {"limit": 0.01}

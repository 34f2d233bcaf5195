"""`moe_block`: the whole mixture-of-experts sub-layer.

Args: x[T,H] bf16, xq mxfp8 [T,H], row_slot[T] i32, roles[T] i32, weights (MoEWeights) -> [T,H] bf16

Composite of moe_route, moe_dispatch, moe_experts, the shared expert (linear, swiglu_quant, linear) and
moe_combine, in one call because accelerators fuse exactly this.  Dispatch and combine always run; on one rank
they are a permutation. Reads x bf16 [T, H], xq mxfp8 [T, H] (the same rows), the rows' slots and roles,
`MoEWeights`.  Returns bf16 [T, H]. Class A.  A NaN in a row of xq makes that row NaN only.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import MoEWeights, PackedWeight, QFormat, QTensor, WeightKind

Tensor = torch.Tensor


@op(
    "moe_block",
    classes={"y": "A"},
    parts=("moe_route", "moe_dispatch", "moe_experts", "moe_combine", "linear", "swiglu_quant"),
    attrs=("k", "experts", "x", "w", "shape", "layout", "shared_w", "shared_layout"),
    passes=(
        ("moe_experts", {"x": "x", "w": "w", "shape": "shape", "layout": "layout"}),
        ("linear", {"x": "x", "w": "shared_w", "layout": "shared_layout"}),
    ),
)
def moe_block(
    parts: Any, x: Tensor, xq: QTensor, row_slot: Tensor, roles: Tensor, weights: MoEWeights
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    experts, weight = parts.moe_route(
        x, weights.gate, weights.bias, weights.bias_vl, roles, weights.k, weights.scaling
    )
    batch = parts.moe_dispatch(xq, experts, weight, row_slot, weights.local)
    routed = parts.moe_experts(batch, weights.w1, weights.w3, weights.w2, weights.limit)
    gate = parts.linear(xq, weights.shared_w1, torch.bfloat16)
    up = parts.linear(xq, weights.shared_w3, torch.bfloat16)
    shared = parts.linear(parts.swiglu_quant(gate, up, weights.limit), weights.shared_w2, torch.bfloat16)
    result: Tensor = parts.moe_combine(routed, batch, shared)
    return result


@case("moe_block", "text-image-and-padding", ROWS)
def _mixed(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    row_slot = draw.i32(0, 3, rows)
    row_slot[4::7] = -1
    return {
        "x": draw.bf16(rows, 64),
        "xq": draw.quantised(QFormat.MXFP8, rows, 64),
        "row_slot": row_slot,
        "roles": draw.i32(0, 2, rows),
        "weights": _weights(draw, QFormat.MXFP4),
    }


def _weights(draw: Draw, fmt: QFormat) -> MoEWeights:
    """Six experts of which two are held elsewhere."""

    def experts(*shape: int) -> PackedWeight:
        weight: PackedWeight = draw.weight(WeightKind.EXPERTS, fmt, 4, *shape)
        return weight

    def linear(*shape: int) -> PackedWeight:
        weight: PackedWeight = draw.weight(WeightKind.LINEAR, QFormat.FP8_BLOCK32, *shape)
        return weight

    gate = draw.weight(WeightKind.LINEAR, QFormat.BF16, 6, 64)
    w1, w3, w2 = experts(32, 64), experts(32, 64), experts(64, 32)
    shared = linear(32, 64), linear(32, 64), linear(64, 32)
    return MoEWeights(gate, draw.f32(6), draw.f32(6), w1, w3, w2, *shared, 2, 1.5, 10.0, (1, 5))


@case("moe_block", "fp8-experts")
def _fp8(seed: int) -> dict[str, Any]:
    return _mixed(seed, 9) | {"weights": _weights(Draw(seed + 1), QFormat.FP8_BLOCK32)}


@case("moe_block", "nan-in-one-row")
def _nan(seed: int) -> dict[str, Any]:
    arguments = _mixed(seed, 3)
    xq = arguments["xq"]
    xq.scale[1, 0], xq.data[1, :32] = 255, 0x7F
    return arguments

"""`moe_block`: the whole mixture-of-experts sub-layer.

Composite of moe_route, moe_dispatch, moe_experts, the shared expert (linear, swiglu_quant, linear) and moe_combine, in one
call because accelerators fuse exactly this.  Dispatch and combine always run; on one rank they are a permutation.
Reads x bf16 [T, H], xq mxfp8 [T, H] (the same rows), the rows' slots and roles, `MoEWeights`.  Returns bf16 [T, H].
Class A.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import op
from tandem.contract.types import MoEWeights, QTensor

Tensor = torch.Tensor


@op(
    "moe_block",
    classes={"y": "A"},
    parts=("moe_route", "moe_dispatch", "moe_experts", "moe_combine", "linear", "swiglu_quant"),
    attrs=("k", "experts", "x", "w", "shape"),
)
def moe_block(parts: Any, x: Tensor, xq: QTensor, row_slot: Tensor, roles: Tensor, weights: MoEWeights) -> Tensor:
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

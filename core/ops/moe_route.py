"""`moe_route`: choose experts and their weights.

Args: x[T,H] bf16, gate (weight [E,H]), bias[E] f32, bias_vl[E] f32, roles[T] i32, k, scaling -> experts[T,k]
i32, weights[T,k] f32

Reads x bf16 [T, H], the gate bf16 [E, H], bias and bias_vl f32 [E], roles int32 [T] (non-zero rows use
bias_vl), k, scaling. Returns experts int32 [T, k] and weights f32 [T, k].  s = sqrt(softplus(x . gate)); the
k largest s + bias by (score desc, index asc), in that order; weights = s / (sum of the k + 1e-20) * scaling,
the bias left out.  NaN counts as -inf.  Classes: experts S, weights
U(4).
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import PackedWeight, QFormat, WeightKind
from tandem.ops.numerics import softplus

Tensor = torch.Tensor


@op("moe_route", classes={"experts": "S", "weights": "U(4)"}, parts=("linear",), attrs=("k", "experts"))
def moe_route(
    parts: Any,
    x: Tensor,
    gate: PackedWeight,
    bias: Tensor,
    bias_vl: Tensor,
    roles: Tensor,
    k: int,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """Plain-torch reference; see the module docstring."""
    scores = torch.sqrt(softplus(parts.linear(x, gate, torch.float32)))
    choice = scores + torch.where((roles != 0).unsqueeze(-1), bias_vl, bias)
    choice = torch.where(torch.isnan(choice), torch.full_like(choice, float("-inf")), choice)
    experts = torch.sort(choice, dim=-1, descending=True, stable=True).indices[:, :k]
    weights = torch.gather(scores, 1, experts)
    total = weights[:, 0:1]
    for i in range(1, k):
        total = total + weights[:, i : i + 1]
    return experts.to(torch.int32), weights / (total + 1e-20) * scaling


@case("moe_route", "text-and-image-rows", ROWS)
def _mixed(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {
        "x": draw.bf16(rows, 64),
        "gate": draw.weight(WeightKind.LINEAR, QFormat.BF16, 12, 64),
        "bias": draw.f32(12),
        "bias_vl": draw.f32(12),
        "roles": draw.i32(0, 2, rows),
        "k": 3,
        "scaling": 1.5,
    }


@case("moe_route", "all-experts-tie")
def _ties(seed: int) -> dict[str, Any]:
    """More experts than a sort of a few elements needs to lose their order."""
    arguments = _mixed(seed, 5)
    arguments["x"][:] = 0.0
    gate = Draw(seed).weight(WeightKind.LINEAR, QFormat.BF16, 80, 64)
    return arguments | {"gate": gate, "bias": torch.zeros(80), "bias_vl": torch.zeros(80)}


@case("moe_route", "some-experts-tie")
def _plateau(seed: int) -> dict[str, Any]:
    arguments = _ties(seed)
    arguments["bias"][4::3] = 0.5
    return arguments


@case("moe_route", "many-experts")
def _many(seed: int) -> dict[str, Any]:
    """More experts than a vector holds, eight for each row."""
    draw = Draw(seed)
    gate = draw.weight(WeightKind.LINEAR, QFormat.BF16, 384, 64)
    return _mixed(seed, 5) | {"gate": gate, "bias": draw.f32(384), "bias_vl": draw.f32(384), "k": 8}


@case("moe_route", "many-terms")
def _deep(seed: int) -> dict[str, Any]:
    """More terms than one part of a sum holds, more experts than a tile."""
    draw = Draw(seed)
    gate = draw.weight(WeightKind.LINEAR, QFormat.BF16, 130, 552)
    return _mixed(seed, 3) | {
        "x": draw.bf16(3, 552),
        "gate": gate,
        "bias": draw.f32(130),
        "bias_vl": draw.f32(130),
        "k": 6,
    }

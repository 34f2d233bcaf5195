"""`moe_route` in two launches: the product of `linear`, to f32, then csrc/ascend/moe_route.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _tiles
from tandem.backends.ascend.kernels import linear as product
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import PackedWeight

Tensor = torch.Tensor


def moe_route(
    x: Tensor, gate: PackedWeight, bias: Tensor, bias_vl: Tensor, roles: Tensor, k: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """See core/ops/moe_route.py."""
    logits = product.linear(x, gate, torch.float32)
    rows, experts = logits.shape
    chosen = torch.empty((rows, k), dtype=torch.int32, device=x.device)
    weights = torch.empty((rows, k), dtype=torch.float32, device=x.device)
    native.run("moe_route", logits, bias, bias_vl, roles, chosen, weights, rows, experts, k, scaling)
    return chosen, weights


def _plan(device: Device, x: Tensor, gate: PackedWeight, k: int, **others: Any) -> list[Plan]:
    """Logits are written and read again; scores and keys pass through UB, keys once more for each choice."""
    rows, experts = x.shape[0], gate.shape[0]
    plans: list[Plan] = product.PLAN["linear"](device, x, gate, torch.float32)
    read, ub = rows * (experts * 4 + 4) + experts * 8, rows * (8 * experts + k * (4 * experts + 8))
    return plans + _tiles.plan(device, rows, read, rows * k * 8, ub)


OPS: dict[str, Any] = {"moe_route": moe_route}
PLAN: dict[str, Any] = {"moe_route": _plan}
WHY: dict[str, str] = {
    "moe_route": "f32 logits lie in memory between the two launches; few experts make tiles that read some rows again"
}

"""`moe_route`: see csrc/cpu/ops/moe_route.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary, weights
from tandem.backends.cpu.kernels._shapes import require
from tandem.contract.types import PackedWeight, QFormat
from tandem.errors import LayoutError

Tensor = torch.Tensor
LANES = 16  # of csrc/cpu/vec.h


def moe_route(
    x: Tensor, gate: PackedWeight, bias: Tensor, bias_vl: Tensor, roles: Tensor, k: int, scaling: float
) -> tuple[Tensor, Tensor]:
    """See core/ops/moe_route.py."""
    (rows, width), experts = x.shape, gate.shape[0]
    matrix = weights.stored("moe_route", gate).data
    if gate.fmt not in (QFormat.BF16, QFormat.F32):
        raise LayoutError(
            "'moe_route' got a gate that it does not read",
            where=repr(gate),
            why=f"its format is {gate.fmt.value}, the op reads bf16 and f32",
            fix="store the gate in bf16",
        )
    require("moe_route", (matrix, (experts, width)), (bias, (experts,)), (bias_vl, (experts,)), (roles, (rows,)))
    chosen, share = temporary.empty((rows, k), dtype=torch.int32), temporary.empty((rows, k), dtype=torch.float32)
    scores = temporary.empty((rows, experts), dtype=torch.float32)
    keys = temporary.empty((rows, -(-experts // LANES) * LANES), dtype=torch.int32)
    both = (matrix, None) if gate.fmt is QFormat.BF16 else (None, matrix)
    arrays = (x, *both, bias, bias_vl, roles, chosen, share, scores, keys)
    native.run("moe_route", *arrays, rows, width, experts, k, float(scaling))
    return chosen, share


OPS: dict[str, Any] = {"moe_route": moe_route}

"""`engram_gate`: add the looked-up memory to the residual streams.

Args: trunk[T,m,H] bf16, kv[T,(m+1)*H] bf16, qk[m,H] f32, eps, roles[T] i32 -> trunk' [T,m,H] bf16

Reads trunk bf16 [T, m, H], kv bf16 [T, (m + 1) * H] (m keys, then one value), qk f32 [m, H] (product of the
two norm weights), eps, roles int32 [T].  Returns bf16 [T, m, H]. s_j = sum(h_j qk_j k_j) * rsqrt(mean h_j^2 +
eps) * rsqrt(mean k_j^2 + eps) * H^-0.5; g = sigmoid(copysign(sqrt(max(|s|, 1e-6)), s)); h_j + g v, rounded
once.  Rows with a role other than 0 pass unchanged.  Class A.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.ops.numerics import row_sum, sigmoid

Tensor = torch.Tensor


@op("engram_gate", classes={"trunk": "A"}, attrs=("m",))
def engram_gate(trunk: Tensor, kv: Tensor, qk: Tensor, eps: float, roles: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    m, width = trunk.shape[1], trunk.shape[2]
    h = trunk.to(torch.float32)
    k = kv.to(torch.float32).unflatten(-1, (m + 1, width))
    key, value = k[:, :m], k[:, m:]
    dot = row_sum(h * qk * key)
    inverse_h = torch.rsqrt(row_sum(h * h) / width + eps)
    inverse_k = torch.rsqrt(row_sum(key * key) / width + eps)
    s = dot * inverse_h * inverse_k * width**-0.5
    gate = sigmoid(torch.copysign(torch.sqrt(s.abs().clamp_min(1e-6)), s))
    updated = (h + gate.unsqueeze(-1) * value).to(torch.bfloat16)
    return torch.where((roles == 0)[:, None, None], updated, trunk)


@case("engram_gate", "text-and-image-rows", ROWS)
def _mixed(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {
        "trunk": draw.bf16(rows, 4, 48),
        "kv": draw.bf16(rows, 5 * 48),
        "qk": draw.f32(4, 48),
        "eps": 1e-20,
        "roles": draw.i32(0, 2, rows),
    }


@case("engram_gate", "zero-keys-and-zero-stream")
def _zero(seed: int) -> dict[str, Any]:
    """A score of zero, where the square root's floor decides."""
    arguments = _mixed(seed, 4) | {"roles": torch.zeros(4, dtype=torch.int32), "eps": 1e-6}
    arguments["kv"][1, :192] = 0.0
    arguments["trunk"][2, 1] = 0.0
    return arguments

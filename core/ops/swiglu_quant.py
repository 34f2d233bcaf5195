"""`swiglu_quant`: gated activation with asymmetric clamp, times the routing weight, quantised.

Args: gate[T,I] bf16, up[T,I] bf16, limit, weight[T] f32 or None -> mxfp8 [T,I]; U(1) before it is quantised

Reads gate and up bf16 [T, I], limit, weight f32 [T] or None; returns mxfp8 [T, I]. g = min(gate, limit); u =
clip(up, -limit, limit); a = g / (1 + exp(-g)) * u [* weight], f32 until the quantisation, U(1) there.
Class Q.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import QFormat, QTensor
from tandem.ops.numerics import encode_rows, sigmoid

Tensor = torch.Tensor


@op("swiglu_quant", classes={"q": "Q"}, parts=("from_canonical",), attrs=("dim",))
def swiglu_quant(parts: Any, gate: Tensor, up: Tensor, limit: float, weight: Tensor | None = None) -> QTensor:
    """Plain-torch reference; see the module docstring."""
    codes, scales = encode_rows(swiglu(gate, up, limit, weight), QFormat.MXFP8)
    q: QTensor = parts.from_canonical(QTensor(codes, scales, QFormat.MXFP8, tuple(gate.shape)))
    return q


def swiglu(gate: Tensor, up: Tensor, limit: float, weight: Tensor | None) -> Tensor:
    """The f32 product [T, I] before quantisation."""
    g = gate.to(torch.float32).clamp_max(limit)
    u = up.to(torch.float32).clamp(-limit, limit)
    product = g * sigmoid(g) * u
    return product if weight is None else product * weight.unsqueeze(-1)


@case("swiglu_quant", "weighted", ROWS)
def _weighted(seed: int, rows: int) -> dict[str, Any]:
    return _plain(seed, rows) | {"weight": Draw(seed + 1).f32(rows)}


@case("swiglu_quant", "clamped", ROWS)
def _plain(seed: int, rows: int) -> dict[str, Any]:
    """Values on both sides of the limit, and some far below it."""
    draw = Draw(seed)
    gate, up = draw.bf16(rows, 96, scale=2.0), draw.bf16(rows, 96, scale=2.0)
    gate[:, :3] = torch.tensor([-100.0, 3.0, 50.0])
    up[:, 2:5] = torch.tensor([-50.0, 50.0, 0.0])
    return {"gate": gate, "up": up, "limit": 3.0}


@case("swiglu_quant", "several-tiles")
def _wide(seed: int) -> dict[str, Any]:
    """Rows of several tiles, the last one not full."""
    draw = Draw(seed)
    return {"gate": draw.bf16(3, 288), "up": draw.bf16(3, 288), "limit": 3.0, "weight": draw.f32(3)}

"""`hc_collapse`: weighted sum of the residual streams.

Args: trunk[T,m,H] bf16, pre[T,m] f32 -> [T,H] bf16, streams in order 0..m-1

Reads trunk bf16 [T, m, H], pre f32 [T, m]; returns bf16 [T, H] = sum over streams 0..m-1, in that order, in
f32, rounded once.  Class U(1).  Source: hyper-connection input of a sub-layer, and the final collapse.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("hc_collapse", classes={"x": "U(1)"}, attrs=("m",))
def hc_collapse(trunk: Tensor, pre: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    first, *others = (trunk.to(torch.float32) * pre.unsqueeze(-1)).unbind(1)
    total = first
    for stream in others:
        total = total + stream
    return total.to(torch.bfloat16)


@case("hc_collapse", "random", ROWS)
def _random(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {"trunk": draw.bf16(rows, 4, 72), "pre": draw.f32(rows, 4)}


@case("hc_collapse", "only-the-first-stream")
def _one_hot(seed: int) -> dict[str, Any]:
    return {"trunk": Draw(seed).bf16(3, 4, 40), "pre": torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(3, 1)}

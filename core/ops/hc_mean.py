"""`hc_mean`: mean of the residual streams, the feature that draft stages tap.

Args: trunk[T,m,H] bf16 -> [T,H] bf16

Reads trunk bf16 [T, m, H]; returns bf16 [T, H], summed in stream order in f32, rounded once.  Class U(1).
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("hc_mean", classes={"x": "U(1)"}, attrs=("m",))
def hc_mean(trunk: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    wide = trunk.to(torch.float32)
    total = wide[:, 0]
    for i in range(1, trunk.shape[1]):
        total = total + wide[:, i]
    return (total / trunk.shape[1]).to(torch.bfloat16)


@case("hc_mean", "random", ROWS)
def _random(seed: int, rows: int) -> dict[str, Any]:
    return {"trunk": Draw(seed).bf16(rows, 4, 72)}


@case("hc_mean", "three-streams")
def _three(seed: int) -> dict[str, Any]:
    return {"trunk": Draw(seed).bf16(5, 3, 40)}

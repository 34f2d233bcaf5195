"""`hc_post`: add a sub-layer's output to the streams and mix them.

Args: y[T,H] bf16, trunk[T,m,H] bf16, post[T,m] f32, comb[T,m,m] f32 -> trunk' [T,m,H] bf16: new[j] = post[j] y
+ sum_i comb[i,j] h[i]

Reads y bf16 [T, H], trunk bf16 [T, m, H], post f32 [T, m], comb f32 [T, m, m]. Returns bf16 [T, m, H]: new[j]
= post[j] * y + sum over i of comb[i, j] * trunk[i], i ascending, in f32, rounded once. Class U(1).  The sum
runs over the FIRST index of comb.  A NaN in y makes its channel NaN in all streams of that row; so does one in a
stream, whatever weight comb gives it.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("hc_post", classes={"trunk": "U(1)"}, attrs=("m",))
def hc_post(y: Tensor, trunk: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    wide = trunk.to(torch.float32)
    total = post.unsqueeze(-1) * y.to(torch.float32).unsqueeze(1)
    for row, stream in zip(comb.unsqueeze(-1).unbind(1), wide.unsqueeze(2).unbind(1), strict=True):
        total = total + row * stream
    return total.to(torch.bfloat16)


@case("hc_post", "random", ROWS)
def _random(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {
        "y": draw.bf16(rows, 72),
        "trunk": draw.bf16(rows, 4, 72),
        "post": draw.f32(rows, 4),
        "comb": draw.f32(rows, 4, 4),
    }


@case("hc_post", "nan-in-an-output-and-in-a-stream")
def _nan(seed: int) -> dict[str, Any]:
    arguments = _random(seed, 3)
    arguments["y"][0, 5] = float("nan")
    arguments["trunk"][2, 1, 7] = float("nan")
    arguments["comb"][2, 1, 3] = 0.0
    return arguments

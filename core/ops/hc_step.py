"""`hc_step`: leave one sub-layer and enter the next in one pass over the trunk.

Args: y[T,H] bf16, trunk[T,m,H] bf16, mix (HcMix of the sub-layer left), weights (HcWeights), norm_weight[H] f32
(of the one entered) -> trunk' [T,m,H] bf16, x[T,H] bf16, xq mxfp8 [T,H], mix (HcMix)

Composite of hc_post and hc_enter.  Reads y bf16 [T, H], trunk, the leaving sub-layer's `HcMix`, and what
`hc_enter` reads; pre_prev is the leaving sub-layer's pre.  Returns (trunk', x, xq, HcMix).
Classes: trunk U(1), x U(1), xq Q, mix A.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import HcMix, HcWeights, QTensor
from tandem.ops.hc_mix import case_weights

Tensor = torch.Tensor


@op(
    "hc_step",
    classes={"trunk": "U(1)", "x": "U(1)", "xq": "Q", "mix": "A"},
    parts=("hc_post", "hc_enter"),
    attrs=("m",),
)
def hc_step(
    parts: Any, y: Tensor, trunk: Tensor, mix: HcMix, weights: HcWeights, norm_weight: Tensor
) -> tuple[Tensor, Tensor, QTensor, HcMix]:
    """Plain-torch reference; see the module docstring."""
    trunk = parts.hc_post(y, trunk, mix.post, mix.comb)
    x, xq, entered = parts.hc_enter(trunk, mix.pre, weights, norm_weight)
    return trunk, x, xq, entered


@case("hc_step", "random", ROWS)
def _random(seed: int, rows: int) -> dict[str, Any]:
    return _arguments(seed, rows, 64)


@case("hc_step", "more-rows-than-a-tile")
def _many(seed: int) -> dict[str, Any]:
    return _arguments(seed, 65, 32)


@case("hc_step", "more-columns-than-a-tile")
def _wide(seed: int) -> dict[str, Any]:
    return _arguments(seed, 3, 160)


def _arguments(seed: int, rows: int, width: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {
        "y": draw.bf16(rows, width),
        "trunk": draw.bf16(rows, 4, width),
        "mix": HcMix(draw.f32(rows, 4), draw.f32(rows, 4), draw.f32(rows, 4, 4)),
        "weights": case_weights(draw, 4, width),
        "norm_weight": draw.f32(width),
    }

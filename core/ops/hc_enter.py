"""`hc_enter`: everything between the trunk and a sub-layer's input.

Args: trunk[T,m,H] bf16, pre_prev[T,m] f32, weights (HcWeights), norm_weight[H] f32 -> x[T,H] bf16, xq mxfp8
[T,H], mix (HcMix)

Composite of hc_mix, hc_collapse (with the PREVIOUS sub-layer's pre) and rms_norm with quantisation.
Reads trunk bf16 [T, m, H], pre_prev f32 [T, m], `HcWeights`, norm weight f32 [H].
Returns (x bf16 [T, H], xq mxfp8, HcMix).  Classes: x U(1), xq Q, mix A.
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
    "hc_enter",
    classes={"x": "U(1)", "xq": "Q", "mix": "A"},
    parts=("hc_mix", "hc_collapse", "rms_norm"),
    attrs=("m",),
)
def hc_enter(
    parts: Any, trunk: Tensor, pre_prev: Tensor, weights: HcWeights, norm_weight: Tensor
) -> tuple[Tensor, QTensor, HcMix]:
    """Plain-torch reference; see the module docstring."""
    mix = parts.hc_mix(trunk, weights)
    x, xq = parts.rms_norm(parts.hc_collapse(trunk, pre_prev), norm_weight, weights.norm_eps, True)
    return x, xq, mix


@case("hc_enter", "random", ROWS)
def _random(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {
        "trunk": draw.bf16(rows, 4, 64),
        "pre_prev": draw.f32(rows, 4),
        "weights": case_weights(draw, 4, 64),
        "norm_weight": draw.f32(64),
    }

"""`hc_mix`: mixing coefficients of one sub-layer from the trunk at its entry.

Args: trunk[T,m,H] bf16, weights (HcWeights) -> HcMix; U(4) but for the dot products

Reads trunk bf16 [T, m, H] and `HcWeights` (fn f32 [m*m + 2m, m*H] with the norm weight folded in, base,
scale[3]). Returns pre f32 [T, m], post f32 [T, m], comb f32 [T, m, m].

    mixes = (flat @ fn.T) * rsqrt(mean(flat^2) + norm_eps)
    pre   = sigmoid(mixes[:m] * scale0 + base) + hc_eps ;  post = 2 sigmoid(mixes[m:2m] * scale1 + base)
    comb  = Sinkhorn(softmax_rows(mixes[2m:] * scale2 + base) + hc_eps): columns, iters-1 times rows, columns

Class A for the dot products, then U(4).  Row bits do not depend on T.  A NaN in a row makes that row NaN
only. Source: shifted single-pass hyper-connections of the model.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import HcMix, HcWeights, QFormat, WeightKind
from tandem.ops.numerics import fixed_matmul, row_sum, sigmoid

Tensor = torch.Tensor


@op("hc_mix", classes={"pre": "A", "post": "A", "comb": "A"}, parts=("unpack_weight",), attrs=("m",))
def hc_mix(parts: Any, trunk: Tensor, weights: HcWeights) -> HcMix:
    """Plain-torch reference; see the module docstring."""
    rows, m, width = trunk.shape
    flat = trunk.to(torch.float32).reshape(rows, m * width)
    fn = parts.unpack_weight(weights.fn).data
    inverse = torch.rsqrt(row_sum(flat * flat).unsqueeze(-1) / (m * width) + weights.norm_eps)
    mixes = fixed_matmul(flat, fn) * inverse
    return coefficients(mixes, weights, m)


def coefficients(mixes: Tensor, weights: HcWeights, m: int) -> HcMix:
    """Normalised dot products [T, m*m + 2m] -> coefficients."""
    base, scale, eps = weights.base, weights.scale, weights.hc_eps
    pre = sigmoid(mixes[:, :m] * scale[0] + base[:m]) + eps
    post = 2.0 * sigmoid(mixes[:, m : 2 * m] * scale[1] + base[m : 2 * m])
    comb = (mixes[:, 2 * m :] * scale[2] + base[2 * m :]).unflatten(-1, (m, m))
    comb = torch.exp(comb - comb.amax(-1, keepdim=True))
    comb = comb / _sum(comb, -1) + eps
    comb = comb / (_sum(comb, -2) + eps)
    for _ in range(weights.iters - 1):
        comb = comb / (_sum(comb, -1) + eps)
        comb = comb / (_sum(comb, -2) + eps)
    return HcMix(pre, post, comb)


def _sum(x: Tensor, dim: int) -> Tensor:
    """Sum over one of the two small axes in index order, by elementwise additions."""
    total = x.narrow(dim, 0, 1)
    for i in range(1, x.shape[dim]):
        total = total + x.narrow(dim, i, 1)
    return total


@case("hc_mix", "random", ROWS)
def _random(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {"trunk": draw.bf16(rows, 4, 96, scale=3.0), "weights": case_weights(draw, 4, 96)}


@case("hc_mix", "three-streams-one-iteration")
def _small(seed: int) -> dict[str, Any]:
    draw = Draw(seed)
    weights = dataclasses.replace(case_weights(draw, 3, 40), iters=1)
    return {"trunk": draw.bf16(5, 3, 40), "weights": weights}


@case("hc_mix", "zero-row-and-nan-row")
def _special(seed: int) -> dict[str, Any]:
    arguments = _random(seed, 5)
    arguments["trunk"][1] = 0.0
    arguments["trunk"][3, 2, 7] = float("nan")
    return arguments


def case_weights(draw: Draw, m: int, width: int) -> HcWeights:
    """Hyper-connection parameters for cases."""
    fn = draw.weight(WeightKind.HC, QFormat.F32, m * m + 2 * m, m * width)
    return HcWeights(fn, draw.f32(m * m + 2 * m), torch.tensor([0.7, 1.3, 0.9]), 1e-20, 1e-6, 20)


@case("hc_mix", "values-of-the-size-of-eps")
def _tiny(seed: int) -> dict[str, Any]:
    arguments = _random(seed, 5)
    weights = dataclasses.replace(arguments["weights"], norm_eps=1e-6)
    return {"trunk": Draw(seed).bf16(5, 4, 96, scale=1e-3), "weights": weights}

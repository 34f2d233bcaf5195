"""Exact masses of a row, and what rejection leaves of them: the integer arithmetic of speculative decoding.

Two rows of weights can be compared only on a common scale.  `normalised` gives masses that sum to exactly 2^42, so
that a draft of mass P is taken with probability min(1, Q / P), and `residual` holds just what is then missing of Q.
"""

from __future__ import annotations

import torch

from tandem.ops._fixed_cdf import UNIFORM_BITS, draw, inverse_cdf, mul_shift, uniform53

Tensor = torch.Tensor

UNIT_BITS = 42  # masses of a row sum to 2^42
DRAFT_STREAM = 1_000_000_007  # added to the seed where drafts are drawn, so that they tell nothing of later draws
_HIGH_BITS = 32  # a weight is at most 2^30: shifted by 32 bits it still fits int64
_LOW_BITS = UNIT_BITS - _HIGH_BITS  # a remainder is below the sum, at most 2^53 for V up to 2^23


def normalised(weight: Tensor) -> Tensor:
    """Masses of each row: floor(w * 2^42 / sum w), and what is missing to 2^42 on the lowest id of the largest weight.

    Reads weight int64 [R, V], 0 to 2^30, V at most 2^23.  Returns int64 [R, V]; a row without weight stays 0.  The
    long division takes two steps, of 32 and 10 bits, and is exact.
    """
    total = weight.sum(-1, keepdim=True)
    divisor = total.clamp_min(1)
    shifted = weight << _HIGH_BITS
    high = torch.div(shifted, divisor, rounding_mode="floor")
    low = torch.div((shifted - high * divisor) << _LOW_BITS, divisor, rounding_mode="floor")
    mass = (high << _LOW_BITS) + low
    ids = torch.arange(weight.shape[1], device=weight.device)
    heaviest = torch.where(weight == weight.amax(-1, keepdim=True), ids, weight.shape[1]).amin(-1, keepdim=True)
    whole = torch.where(total > 0, 1 << UNIT_BITS, 0)
    return mass.scatter_add(1, heaviest, whole - mass.sum(-1, keepdim=True))


def draw_proposal(mass: Tensor, uniform: Tensor) -> Tensor:
    """A token of masses int64 [R, V] that sum to 2^42, for uniform int64 [R] below 2^53; each exactly by its mass."""
    return inverse_cdf(mass, uniform >> (UNIFORM_BITS - UNIT_BITS))


def residual(target: Tensor, proposal: Tensor) -> Tensor:
    """max(target - proposal, 0) of masses int64 [R, V]; the target's own where nothing is left."""
    left = (target - proposal).clamp_min(0)
    return torch.where(left.sum(-1, keepdim=True) > 0, left, target)


def reject_or_take(target: Tensor, proposal: Tensor, draft: Tensor, seed: Tensor, position: Tensor) -> Tensor:
    """The token of each row that has a draft: the draft, or one of the residual.

    Reads masses int64 [R, V] of target and proposal, draft int64 [R] in 0..V-1, seed and position int64 [R].  Returns
    int64 [R].  The draft t is taken where floor(u2 * P[t] / 2^53) < Q[t], u2 being the draw of case 2; the residual
    is drawn from with case 1.  A draft that is not taken has no mass in the residual, so the token differs from it.
    """
    at = draft.unsqueeze(-1)
    bar = mul_shift(uniform53(seed, position, 2), proposal.gather(1, at).squeeze(-1), UNIFORM_BITS)
    taken = bar < target.gather(1, at).squeeze(-1)
    return torch.where(taken, draft, draw(residual(target, proposal), uniform53(seed, position, 1)))

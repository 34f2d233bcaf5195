"""`draft_sample`: draw one draft token per row, and give the weights it was drawn by.

Args: logits[N,V] f32, temperature[N] f32, top_p[N] f32, top_k[N] i32, min_p[N] f32, seed[N] i64, position[N] i64,
coupled, filtered (host hint) -> token[N] i32 (-1 none), weight[N,V] i32 (0 to 2^30)

Reads logits, temperature, top_p, top_k, min_p, seed and filtered as in `sample`, V at most 2^23; position int64
[N], the absolute position of the token that is proposed; coupled: whether the draw is to fall where the draw of
the token itself will.  Writes nothing.  Returns weight int32 [N, V], the integer weights of `sample` after the
filters, and token int32 [N]: the first id whose inclusive sum of masses (`core/ops/_residual.py: normalised`, of
sum 2^42) exceeds u >> 11.  u is the draw of case 0 of the seed where coupled, else of seed + 1000000007 (mod 2^64).
So the law of a draft is exactly that of its masses, which is what `spec_verify` takes it for.  A row with any NaN
or without a finite maximum gives token -1 and weights 0.  Classes: token P, weight U(4) before it is cut to an
integer.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import case, op
from tandem.ops._distribution import distribution
from tandem.ops._fixed_cdf import uniform53
from tandem.ops._residual import DRAFT_STREAM, draw_proposal, normalised
from tandem.ops.sample import normal_logits, sampling_arguments

Tensor = torch.Tensor


@op("draft_sample", classes={"token": "P", "weight": "U(4)"}, since=(1, 1))
def draft_sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seed: Tensor,
    position: Tensor,
    coupled: bool,
    filtered: bool,
) -> tuple[Tensor, Tensor]:
    """Plain-torch reference; see the module docstring."""
    dist = distribution(logits, temperature, top_p, top_k, filtered, min_p)
    stream = seed if coupled else seed + DRAFT_STREAM
    token = draw_proposal(normalised(dist.weight), uniform53(stream, position.to(torch.int64)))
    weight = torch.where(dist.valid.unsqueeze(-1), dist.weight, 0)
    return torch.where(dist.valid, token, -1).to(torch.int32), weight.to(torch.int32)


def _arguments(logits: Tensor, seed: int, coupled: bool) -> dict[str, Any]:
    rows = logits.shape[0]
    return sampling_arguments(logits, 1.0, 1.0, -1) | {
        "min_p": torch.zeros(rows),
        "seed": torch.full((rows,), seed * 7919 - 5, dtype=torch.int64),
        "position": torch.arange(rows, dtype=torch.int64) * 131 + seed,
        "coupled": coupled,
    }


def _filtered(seed: int, coupled: bool) -> dict[str, Any]:
    return _arguments(normal_logits(seed, 5, 97), seed, coupled) | {
        "temperature": torch.tensor([0.0, 0.7, 1.0, 1.5, 1.0]),
        "top_p": torch.tensor([0.5, 0.8, 1.0, 0.6, 1.0]),
        "top_k": torch.tensor([-1, -1, 5, 20, -1], dtype=torch.int32),
        "min_p": torch.tensor([0.1, 0.0, 0.0, 0.02, 0.1]),
        "filtered": True,
    }


@case("draft_sample", "plain")
def plain(seed: int) -> dict[str, Any]:
    """A vocabulary that is no multiple of any vector width."""
    return _arguments(normal_logits(seed, 7, 131), seed, False)


@case("draft_sample", "coupled")
def coupled_rows(seed: int) -> dict[str, Any]:
    """The request's own stream."""
    return _arguments(normal_logits(seed, 7, 131), seed, True)


@case("draft_sample", "filters")
def filters(seed: int) -> dict[str, Any]:
    """Every row with its own filters; one is greedy."""
    return _filtered(seed, False)


@case("draft_sample", "filters_coupled")
def filters_coupled(seed: int) -> dict[str, Any]:
    """The same, of the request's own stream."""
    return _filtered(seed, True)


@case("draft_sample", "ties")
def ties(seed: int) -> dict[str, Any]:
    """Few distinct values; the remainder of the masses goes to the lowest id of the maximum."""
    return _arguments(normal_logits(seed, 6, 33, 1.0).round(), seed, False)


@case("draft_sample", "unusable_rows")
def unusable_rows(seed: int) -> dict[str, Any]:
    """Rows of -inf, with +inf and with NaN between good ones."""
    logits = normal_logits(seed, 5, 40)
    logits[1] = float("-inf")
    logits[2, 7] = float("inf")
    logits[3, 39] = float("nan")
    return _arguments(logits, seed, False)

"""`draft_heads`: what one draft is drawn from, and how far it is trusted, given the token before it.

Args: base[N,V] f32, hidden[N,H] bf16 (before the last norm), previous[N] i32 (-1 none), embedding (weight
[V,R]), head (weight [V,R]), proj[H+R] f32, temperature -> logits[N,V] f32, confidence[N] f32

Reads base f32 [N, V] (logits of the draft rows without the token before), hidden bf16 [N, H], previous int32
[N], the Markov head's embedding and head, both bf16 [V, R], the weights proj f32 [H + R] of the confidence
and its temperature. base and hidden may be views whose rows are not next to one another. With e =
embedding[previous]: logits = base + head e, f32 with one rounding for the sum; confidence =
sigmoid(clip((proj . [hidden, e]) / temperature, -60, 60)), f32 with terms in one fixed order.  A row whose
previous is negative gives logits -inf, so that nothing can be drawn from it, and confidence 0, whatever its
other inputs hold.  Rows do not depend on one another or on N.  Classes: logits A; confidence U(4) beside the
floor of its sum.  Source: model definition, draft module, Markov and confidence head.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import PackedWeight, QFormat, WeightKind
from tandem.ops.numerics import row_sum, sigmoid

Tensor = torch.Tensor

CLIP = 60.0


@op(
    "draft_heads",
    classes={"logits": "A", "confidence": "U(4)"},
    parts=("embed", "linear"),
    attrs=("x", "w", "out", "shape", "layout"),
    passes=(("linear", {"x": "x", "w": "w", "out": "out", "shape": "shape", "layout": "layout"}),),
    since=(1, 1),
)
def draft_heads(
    parts: Any,
    base: Tensor,
    hidden: Tensor,
    previous: Tensor,
    embedding: PackedWeight,
    head: PackedWeight,
    proj: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Plain-torch reference; see the module docstring."""
    known = previous >= 0
    embedded = parts.embed(previous.clamp_min(0), embedding, None, None)
    logits = base + parts.linear(embedded, head, torch.float32)
    features = torch.cat((hidden, embedded), dim=1).to(torch.float32)
    score = row_sum(features * proj) / temperature
    confidence = sigmoid(score.clamp(-CLIP, CLIP))
    return (
        torch.where(known.unsqueeze(-1), logits, torch.full_like(logits, float("-inf"))),
        torch.where(known, confidence, torch.zeros_like(confidence)),
    )


@case("draft_heads", "some-without-a-token", ROWS)
def _some(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    previous = draw.i32(0, 50, rows)
    previous[2::5], previous[0] = -1, 49
    return {
        "base": draw.f32(rows, 50),
        "hidden": draw.bf16(rows, 64),
        "previous": previous,
        "embedding": draw.weight(WeightKind.EMBED, QFormat.BF16, 50, 32),
        "head": draw.weight(WeightKind.LINEAR, QFormat.BF16, 50, 32),
        "proj": draw.f32(96, scale=0.2),
        "temperature": 1.0,
    }


@case("draft_heads", "another-temperature")
def _temperature(seed: int) -> dict[str, Any]:
    return _some(seed, 7) | {"temperature": 2.5}


@case("draft_heads", "clipped-on-both-sides")
def _clipped(seed: int) -> dict[str, Any]:
    """Scores of more than 60 either way: the confidence stays above 0, and its inverse finite."""
    arguments = _some(seed, 2)
    arguments["proj"][:64] = 2.0
    arguments["hidden"][0], arguments["hidden"][1] = 4.0, -4.0
    return arguments


@case("draft_heads", "nan-in-unused-and-in-used-rows")
def _nan(seed: int) -> dict[str, Any]:
    """Row 2 has no token before it; row 0 has NaN in one logit, row 1 in its hidden."""
    arguments = _some(seed, 5)
    arguments["base"][2], arguments["hidden"][2] = float("nan"), float("nan")
    arguments["base"][0, 3], arguments["hidden"][1, 7] = float("nan"), float("nan")
    return arguments

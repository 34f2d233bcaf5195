"""`aux.draft_commit`: keep one draft of each request for the step that judges it.

Args: slots[n] i32, column, token[n] i32, weight[n,V] i32, confidence[n] f32, drafts[R+1,B] i32, proposal[(R+1)*B,V]
i32, rates[R+1,B] f32 -> None; writes drafts, proposal and rates

Reads slots int32 [n] (distinct where >= 0), column (0..B-1, the place of the draft in its block), token int32 [n]
(-1: none), weight int32 [n, V] the token was drawn by, confidence f32 [n] that it is taken if all before it are.
Writes drafts[slot, column] = token, proposal[slot * B + column] = weight and rates[slot, column] = confidence, times
rates[slot, column - 1] where column > 0: the rate at which the draft is reached and taken.  Slot -1 goes to the last
row of each array, which is scratch.  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("aux.draft_commit", classes={"drafts": "X", "proposal": "X", "rates": "X"}, since=(1, 1))
def draft_commit(
    slots: Tensor,
    column: int,
    token: Tensor,
    weight: Tensor,
    confidence: Tensor,
    drafts: Tensor,
    proposal: Tensor,
    rates: Tensor,
) -> None:
    """Plain-torch reference; see the module docstring."""
    slot = slots.to(torch.int64)
    drafts[slot, column] = token
    proposal[torch.where(slot >= 0, slot * drafts.shape[1] + column, -1)] = weight
    rates[slot, column] = confidence * rates[slot, column - 1] if column else confidence


def _arguments(seed: int, column: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {
        "slots": torch.tensor([3, -1, 0, -1, 2], dtype=torch.int32),
        "column": column,
        "token": torch.tensor([7, 4, -1, 3, 10], dtype=torch.int32),
        "weight": draw.i32(0, 1 << 30, 5, 11),
        "confidence": torch.from_numpy(draw.rng.random(5, dtype="float32")),
        "drafts": draw.i32(-1, 11, 5, 3),
        "proposal": draw.i32(0, 1 << 30, 15, 11),
        "rates": torch.from_numpy(draw.rng.random((5, 3), dtype="float32")),
    }


@case("aux.draft_commit", "first-of-a-block")
def _first(seed: int) -> dict[str, Any]:
    """Nothing comes before; two rows are skipped and one has no token."""
    return _arguments(seed, 0)


@case("aux.draft_commit", "later-in-a-block")
def _later(seed: int) -> dict[str, Any]:
    """The rate goes on from the draft before."""
    return _arguments(seed, 2)


@case("aux.draft_commit", "wide-rows")
def _wide(seed: int) -> dict[str, Any]:
    """Weights wider than one block of a copy."""
    draw = Draw(seed)
    return {
        "slots": torch.tensor([0], dtype=torch.int32),
        "column": 1,
        "token": torch.tensor([7], dtype=torch.int32),
        "weight": draw.i32(0, 1 << 30, 1, 4100),
        "confidence": torch.tensor([0.25]),
        "drafts": draw.i32(-1, 11, 2, 2),
        "proposal": draw.i32(0, 1 << 30, 4, 4100),
        "rates": torch.from_numpy(draw.rng.random((2, 2), dtype="float32")),
    }

"""`penalize_logits`: repetition, presence and frequency penalties of single logits, in place.

Args: logits[N,V] f32, row[M] i32 (-1 none), token[M] i32, repetition[M] f32, minus[M] f32 -> None; writes
logits[row,token]: x / repetition where x > 0, else x * repetition, then minus

Reads row int32 [M] (-1: padding, which changes no bit), token int32 [M] in 0..V-1, repetition f32 [M] above 0 (1
off), minus f32 [M] (0 off): presence penalty plus frequency penalty times the number of occurrences.  Each (row,
token) occurs once at most.  Writes logits f32 [N, V] in f32: the quotient or product, rounded, then the difference.
NaN and infinities follow IEEE arithmetic.  Class U(1).
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import case, op
from tandem.ops.sample import normal_logits

Tensor = torch.Tensor


@op("penalize_logits", classes={"logits": "U(1)"}, since=(1, 1))
def penalize_logits(logits: Tensor, row: Tensor, token: Tensor, repetition: Tensor, minus: Tensor) -> None:
    """Plain-torch reference; see the module docstring."""
    if not row.shape[0]:
        return
    real = row >= 0
    at_row, at_token = (torch.where(real, index, 0).to(torch.int64) for index in (row, token))
    old = logits[at_row, at_token]
    scaled = torch.where(old > 0, old / repetition, old * repetition)
    new = torch.where(real, scaled - minus, old)
    # Padding writes what the first real entry writes, in the same place; without one, what stands at (0, 0).
    stand_in = torch.where(real, torch.arange(row.shape[0], device=row.device), real.to(torch.int32).argmax())
    logits.index_put_((at_row[stand_in], at_token[stand_in]), new[stand_in])


@case("penalize_logits", "distinct_places")
def distinct_places(seed: int) -> dict[str, Any]:
    """Positive and negative logits, repetition above and below 1, and each penalty alone."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randperm(4 * 50, generator=generator)[:40].to(torch.int32)
    repetition = torch.rand(40, generator=generator) * 1.5 + 0.5
    minus = torch.randn(40, generator=generator)
    repetition[::5], minus[1::5] = 1.0, 0.0
    logits = normal_logits(seed, 4, 50)
    return {"logits": logits, "row": place // 50, "token": place % 50, "repetition": repetition, "minus": minus}


@case("penalize_logits", "padding")
def padding(seed: int) -> dict[str, Any]:
    """Unused entries hold NaN and ids out of range; logits[0, 0] is -0 and named once, a banned token stays banned."""
    logits = normal_logits(seed, 3, 10)
    logits[0, 0], logits[2, 4] = -0.0, float("-inf")
    nan = float("nan")
    return {
        "logits": logits,
        "row": torch.tensor([-1, 2, -1, 0], dtype=torch.int32),
        "token": torch.tensor([99, 4, -7, 0], dtype=torch.int32),
        "repetition": torch.tensor([nan, 1.5, nan, 2.0]),
        "minus": torch.tensor([nan, 0.5, nan, 0.25]),
    }


@case("penalize_logits", "only_padding")
def only_padding(seed: int) -> dict[str, Any]:
    """Nothing is changed, not even the sign of a zero or a NaN."""
    logits = normal_logits(seed, 2, 5)
    logits[0, 0], logits[1, 1] = -0.0, float("nan")
    none, junk = torch.full((3,), -1, dtype=torch.int32), torch.full((3,), float("nan"))
    return {"logits": logits, "row": none, "token": none, "repetition": junk, "minus": junk}


@case("penalize_logits", "empty")
def empty(seed: int) -> dict[str, Any]:
    """No entry."""
    none = torch.empty(0, dtype=torch.int32)
    return {"logits": normal_logits(seed, 2, 5), "row": none, "token": none, "repetition": torch.empty(0),
            "minus": torch.empty(0)}  # fmt: skip

"""`adjust_logits`: add biases and penalties to single logits, in place.

Args: logits[N,V] f32, row[N'] i32 (-1 none), token[N'] i32, value[N'] f32 -> None; logits[row,token] += value
in place (-inf bans)

Reads row int32 [N] (-1: padding, which changes no bit), token int32 [N] in 0..V-1, value f32 [N] (-inf bans).
Writes logits f32 [R, V]: logits[row, token] += value; values for the same place add up, in any order.
NaN follows IEEE addition.  Class U(1), X where a place occurs once.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import case, op
from tandem.ops.sample import normal_logits

Tensor = torch.Tensor


@op("adjust_logits", classes={"logits": "U(1)"})
def adjust_logits(logits: Tensor, row: Tensor, token: Tensor, value: Tensor) -> None:
    """Plain-torch reference; see the module docstring."""
    real = row >= 0
    at_row = torch.where(real, row, 0).to(torch.int64)
    at_token = torch.where(real, token, 0).to(torch.int64)
    # Adding -0.0 keeps the bits of every number, +0 and -0 included.
    change = torch.where(real, value, -0.0)
    logits.index_put_((at_row, at_token), change, accumulate=True)


@case("adjust_logits", "distinct_places")
def distinct_places(seed: int) -> dict[str, Any]:
    """Finite values and bans, each place once."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.randperm(4 * 50, generator=generator)[:30].to(torch.int32)
    value = torch.randn(30, generator=generator)
    value[::7] = float("-inf")
    return {"logits": normal_logits(seed, 4, 50), "row": place // 50, "token": place % 50, "value": value}


@case("adjust_logits", "padding")
def padding(seed: int) -> dict[str, Any]:
    """Unused entries hold NaN and a token id out of range; logits[0, 0] is -0."""
    logits = normal_logits(seed, 3, 10)
    logits[0, 0] = -0.0
    return {
        "logits": logits,
        "row": torch.tensor([-1, 2, -1], dtype=torch.int32),
        "token": torch.tensor([99, 4, -7], dtype=torch.int32),
        "value": torch.tensor([float("nan"), 1.5, float("nan")]),
    }


@case("adjust_logits", "empty")
def empty(seed: int) -> dict[str, Any]:
    """Nothing to add."""
    none = torch.empty(0, dtype=torch.int32)
    return {"logits": normal_logits(seed, 2, 5), "row": none, "token": none, "value": torch.empty(0)}

"""`top_logprobs`: the n largest values of each row.

Args: values[N,V] f32, n -> ids[N,n] i32, logprobs[N,n] f32 by (value desc, id asc), filled with -1, -inf

Reads values f32 [R, V] (log-probabilities, from `process_logits`) and n.  Writes nothing.  Returns ids
int32 [R, n] and logprobs f32 [R, n], ordered by (value descending, id ascending).  -0 and +0 are equal.
-inf and NaN are never chosen; places that remain hold id -1 and -inf.  Classes: ids S, logprobs X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import case, op
from tandem.ops.sample import normal_logits

Tensor = torch.Tensor


@op("top_logprobs", classes={"ids": "S", "logprobs": "X"}, attrs=("n",))
def top_logprobs(values: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Plain-torch reference; see the module docstring."""
    low = float("-inf")
    clean = torch.where(torch.isnan(values), low, values)
    clean = torch.nn.functional.pad(clean, (0, max(0, n - values.shape[1])), value=low)
    # Distinct integer keys in the wanted order: a library top-k leaves the order of ties open.
    bits = (clean + 0.0).view(torch.int32)  # + 0.0 turns -0 into +0
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    ids = torch.arange(clean.shape[1], device=values.device)
    index = torch.topk((ordered << 32) - ids, n, dim=-1, sorted=True).indices
    best = clean.gather(1, index)
    return torch.where(best == low, -1, index).to(torch.int32), best


@case("top_logprobs", "distinct")
def distinct(seed: int) -> dict[str, Any]:
    """No ties."""
    return {"values": normal_logits(seed, 5, 300), "n": 8}


@case("top_logprobs", "ties")
def ties(seed: int) -> dict[str, Any]:
    """Few distinct values, zeros of both signs among them."""
    return {"values": normal_logits(seed, 6, 90, 1.0).round(), "n": 25}


@case("top_logprobs", "few_left")
def few_left(seed: int) -> dict[str, Any]:
    """Fewer finite values than places; NaN counts as removed."""
    values = normal_logits(seed, 3, 20)
    values[0, 3:] = float("-inf")
    values[1] = float("nan")
    values[2, ::2] = float("nan")
    return {"values": values, "n": 12}


@case("top_logprobs", "small_vocabulary")
def small_vocabulary(seed: int) -> dict[str, Any]:
    """More places than tokens."""
    return {"values": normal_logits(seed, 2, 3), "n": 5}

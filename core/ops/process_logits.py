"""`process_logits`: log-probabilities of the distribution that `sample` draws from.

Args: logits[N,V] f32, temperature[N] f32, top_p[N] f32, top_k[N] i32, filtered (host hint), min_p[N] f32 or None
(0 off) -> logprobs[N,V] f32 (-inf removed)

Reads logits f32 [R, V], temperature f32 [R], top_p f32 [R], top_k int32 [R], filtered and min_p, all as in
`sample`.
Writes nothing.  Returns f32 [R, V]: d - log(sum of exp(d) over the tokens left), where d is (logit - maximum)
times (1 / temperature) as rounded in fp32; -inf for tokens that min-p, top-p or top-k removes.  A greedy row is 0 at
the argmax and -inf elsewhere.  With temperature 1 and no filter these are the raw log-probabilities.  A
token that is left may have a finite value here and still the integer weight 0 (below 2^-30 of the maximum's).
Ties as in `sample`.  A row with any NaN or without a finite maximum gives NaN everywhere.  Class U(4).
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import case, op
from tandem.ops._distribution import distribution, log_normaliser
from tandem.ops.sample import normal_logits, sampling_arguments

Tensor = torch.Tensor


@op("process_logits", classes={"logprobs": "U(4)"})
def process_logits(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    filtered: bool,
    min_p: Tensor | None = None,
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    dist = distribution(logits, temperature, top_p, top_k, filtered, min_p)
    logprobs = dist.scaled - log_normaliser(dist.scaled, dist.kept, dist.top)
    logprobs = torch.where(dist.kept, logprobs, float("-inf"))
    return torch.where(dist.valid.unsqueeze(-1), logprobs, float("nan"))


@case("process_logits", "raw")
def raw(seed: int) -> dict[str, Any]:
    """Plain log-softmax."""
    return sampling_arguments(normal_logits(seed, 5, 203), 1.0, 1.0, -1)


@case("process_logits", "filters")
def filters(seed: int) -> dict[str, Any]:
    """Every row with its own numbers; one is greedy."""
    return {
        "logits": normal_logits(seed, 4, 129),
        "temperature": torch.tensor([0.0, 0.5, 1.0, 2.0]),
        "top_p": torch.tensor([1.0, 0.7, 0.9, 0.6]),
        "top_k": torch.tensor([-1, 40, 4, -1], dtype=torch.int32),
        "filtered": True,
    }


@case("process_logits", "min_p")
def min_p(seed: int) -> dict[str, Any]:
    """Min-p alone, with top-p and with top-k, and on a greedy row."""
    return {
        "logits": normal_logits(seed, 4, 129),
        "temperature": torch.tensor([0.0, 1.5, 1.0, 2.0]),
        "top_p": torch.tensor([1.0, 0.85, 1.0, 1.0]),
        "top_k": torch.tensor([-1, -1, 4, -1], dtype=torch.int32),
        "filtered": True,
        "min_p": torch.tensor([0.5, 0.2, 0.02, 0.1]),
    }


@case("process_logits", "min_p_off")
def min_p_off(seed: int) -> dict[str, Any]:
    """Min-p is given and 0 everywhere."""
    return raw(seed) | {"min_p": torch.zeros(5)}


@case("process_logits", "ties")
def ties(seed: int) -> dict[str, Any]:
    """Few distinct values."""
    return sampling_arguments(normal_logits(seed, 6, 64, 1.0).round(), 1.0, 0.5, 12)


@case("process_logits", "peaked")
def peaked(seed: int) -> dict[str, Any]:
    """One token holds nearly all: its log-probability is a small number that must keep its digits."""
    logits = normal_logits(seed, 4, 100, 1.0)
    logits[torch.arange(4), torch.arange(4) * 20] += torch.tensor([8.0, 12.0, 16.0, 30.0])
    return sampling_arguments(logits, 1.0, 1.0, -1)


@case("process_logits", "unusable_rows")
def unusable_rows(seed: int) -> dict[str, Any]:
    """Rows of -inf and with NaN, and one with some tokens banned."""
    logits = normal_logits(seed, 4, 40)
    logits[0, :30] = float("-inf")
    logits[1] = float("-inf")
    logits[2, 5] = float("nan")
    return sampling_arguments(logits, 1.0, 0.9, -1)


@case("process_logits", "large_vocabulary")
def large_vocabulary(seed: int) -> dict[str, Any]:
    """More tokens than one tile holds, and a top-k of some hundreds."""
    return sampling_arguments(normal_logits(seed, 2, 9001, 1.0), 1.0, 0.95, 700)

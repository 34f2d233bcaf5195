"""`sample`: draw one token per row by inverse transform in integer arithmetic.

Args: logits[N,V] f32, temperature[N] f32, top_p[N] f32, top_k[N] i32, seed[N] i64, position[N] i64, filtered
(host hint: False saves the sort), min_p[N] f32 or None (0 off) -> token[N] i32
(-1 none), logprob_raw[N] f32, logprob[N] f32

Reads
  logits f32 [R, V], V below 2^24;
  temperature f32 [R]; below 1e-5 the row is greedy: argmax, lowest id on ties;
  min_p f32 [R] in 0..1 (0 or None: off), top_p f32 [R] in (0, 1], top_k int32 [R] (-1: off); temperature, then
  min-p, then top-p of the rest, then top-k;
  seed int64 [R], 64 unsigned bits; position int64 [R], the absolute position of the token being drawn;
  filtered, a host hint: False only if every row is greedy or has min_p = 0, top_p = 1 and top_k = -1.  It
  saves the sort and changes no bit.
Writes nothing.  Returns
  token int32 [R];
  logprob_raw f32 [R], log-probability of the token under softmax(logits);
  logprob f32 [R], the same under the distribution it was drawn from; 0 for a greedy row.
Ties: the filters order by (logit descending, id ascending).  -inf is never drawn.  A row with any NaN or
without a finite maximum gives token -1 and NaN logprobs.
Classes: token P, logprob_raw U(4), logprob U(4), given the fp32 differences.  The rules are in
docs/CONTRACT.md, "Sampling"; the hash is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), keyed by seed and
position.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import case, op
from tandem.ops._distribution import distribution, log_normaliser
from tandem.ops._fixed_cdf import draw, uniform53

Tensor = torch.Tensor


@op("sample", classes={"token": "P", "logprob_raw": "U(4)", "logprob": "U(4)"})
def sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    seed: Tensor,
    position: Tensor,
    filtered: bool,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Plain-torch reference; see the module docstring."""
    dist = distribution(logits, temperature, top_p, top_k, filtered, min_p)
    token = draw(dist.weight, uniform53(seed, position.to(torch.int64))).unsqueeze(-1)
    raw = dist.raw.gather(1, token) - log_normaliser(dist.raw, None, dist.top)
    processed = dist.scaled.gather(1, token) - log_normaliser(dist.scaled, dist.kept, dist.top)
    nan = float("nan")
    return (
        torch.where(dist.valid, token.squeeze(-1), -1).to(torch.int32),
        torch.where(dist.valid, raw.squeeze(-1), nan),
        torch.where(dist.valid, processed.squeeze(-1), nan),
    )


def sampling_arguments(logits: Tensor, temperature: float, top_p: float, top_k: int) -> dict[str, Any]:
    """The same three numbers for each row, as device arrays, for cases and tests."""
    rows = logits.shape[0]
    return {
        "logits": logits,
        "temperature": torch.full((rows,), temperature),
        "top_p": torch.full((rows,), top_p),
        "top_k": torch.full((rows,), top_k, dtype=torch.int32),
        "filtered": top_p < 1.0 or top_k > 0,
    }


def _drawn(arguments: dict[str, Any], seed: int) -> dict[str, Any]:
    rows = arguments["logits"].shape[0]
    position = torch.arange(rows, dtype=torch.int64) * 131 + seed
    return arguments | {"seed": torch.full((rows,), seed * 7919 - 5, dtype=torch.int64), "position": position}


def normal_logits(seed: int, rows: int, vocab: int, spread: float = 3.0) -> Tensor:
    """Logits of independent normal variables, f32 [rows, vocab]."""
    return torch.randn((rows, vocab), generator=torch.Generator().manual_seed(seed)) * spread


@case("sample", "plain")
def plain(seed: int) -> dict[str, Any]:
    """No filter, a vocabulary that is no multiple of any vector width."""
    return _drawn(sampling_arguments(normal_logits(seed, 7, 131), 1.0, 1.0, -1), seed)


@case("sample", "filters")
def filters(seed: int) -> dict[str, Any]:
    """Every row with its own temperature, top-p and top-k; one is greedy, one unfiltered."""
    return _drawn(
        {
            "logits": normal_logits(seed, 6, 257),
            "temperature": torch.tensor([0.0, 0.3, 0.7, 1.0, 1.5, 1.0]),
            "top_p": torch.tensor([0.5, 0.9, 0.3, 0.95, 0.8, 1.0]),
            "top_k": torch.tensor([1, -1, 20, 3, 100, -1], dtype=torch.int32),
            "filtered": True,
        },
        seed,
    )


@case("sample", "min_p")
def min_p(seed: int) -> dict[str, Any]:
    """Min-p alone, with top-p (of what it leaves) and with top-k; off; on a greedy row; and 1, which keeps the best."""
    arguments = {
        "logits": normal_logits(seed, 6, 257),
        "temperature": torch.tensor([1.0, 0.7, 1.5, 1.0, 0.0, 1.0]),
        "top_p": torch.tensor([1.0, 0.6, 1.0, 0.95, 0.9, 1.0]),
        "top_k": torch.tensor([-1, -1, 9, 3, -1, -1], dtype=torch.int32),
        "filtered": True,
        "min_p": torch.tensor([0.05, 0.02, 0.01, 0.0, 0.3, 1.0]),
    }
    return _drawn(arguments, seed)


@case("sample", "min_p_off")
def min_p_off(seed: int) -> dict[str, Any]:
    """Min-p is given and 0 everywhere, so the hint may say that nothing is filtered."""
    return plain(seed) | {"min_p": torch.zeros(7)}


@case("sample", "ties")
def ties(seed: int) -> dict[str, Any]:
    """Few distinct values, so that both filters cut through plateaus."""
    return _drawn(sampling_arguments(normal_logits(seed, 8, 64, 1.0).round(), 1.0, 0.6, 9), seed)


@case("sample", "plateau")
def plateau(seed: int) -> dict[str, Any]:
    """All logits equal: every weight is 2^30."""
    return _drawn(sampling_arguments(torch.full((5, 1000), -2.5), 0.8, 0.5, -1), seed)


@case("sample", "greedy_ties")
def greedy_ties(seed: int) -> dict[str, Any]:
    """The maximum occurs several times; the lowest id is the answer."""
    return _drawn(sampling_arguments(normal_logits(seed, 9, 33, 1.0).round(), 0.0, 1.0, -1), seed)


@case("sample", "one_hot")
def one_hot(seed: int) -> dict[str, Any]:
    """One token per row is allowed."""
    logits = torch.full((4, 50), float("-inf"))
    logits[torch.arange(4), torch.arange(4) * 11 + seed % 7] = 3.0
    return _drawn(sampling_arguments(logits, 1.0, 0.9, 5), seed)


@case("sample", "unusable_rows")
def unusable_rows(seed: int) -> dict[str, Any]:
    """Rows of -inf, with +inf and with NaN between good ones."""
    logits = normal_logits(seed, 5, 40)
    logits[1] = float("-inf")
    logits[2, 7] = float("inf")
    logits[3, 39] = float("nan")
    return _drawn(sampling_arguments(logits, 1.0, 0.7, 10), seed)


@case("sample", "large_vocabulary")
def large_vocabulary(seed: int) -> dict[str, Any]:
    """More tokens than one tile holds; most of the weight lies past the first tiles, and one position is large."""
    logits = normal_logits(seed, 4, 9001, 1.0)
    logits[:2, 5000:] += 4.0
    arguments = _drawn(sampling_arguments(logits, 1.0, 0.9, 700), seed)
    arguments["position"][-1] = 1_000_003
    return arguments

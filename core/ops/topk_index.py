"""`topk_index`: indices of the k best scores of each row.

Args: scores[T,S] bf16 or f32, k -> idx[T,k] i32 ascending, -1 fill; -inf and NaN never chosen

Reads scores bf16 or f32 [T, S], k.  Returns int32 [T, k], ascending, filled with -1 at the end.
Order of preference: score descending, then index ascending.  -inf and NaN are never chosen.  Class S.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("topk_index", classes={"index": "S"}, attrs=("k",))
def topk_index(scores: Tensor, k: int) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    low = torch.full_like(scores, float("-inf"))
    clean = torch.where(torch.isnan(scores), low, scores)
    if clean.shape[1] < k:
        clean = torch.nn.functional.pad(clean, (0, k - clean.shape[1]), value=float("-inf"))
    values, index = torch.sort(clean, dim=-1, descending=True, stable=True)
    past = clean.shape[1]
    chosen = torch.where(values[:, :k] > float("-inf"), index[:, :k], torch.full_like(index[:, :k], past))
    ascending = torch.sort(chosen, dim=-1).values
    return torch.where(ascending == past, torch.full_like(ascending, -1), ascending).to(torch.int32)


@case("topk_index", "random", ROWS)
def _random(seed: int, rows: int) -> dict[str, Any]:
    return {"scores": Draw(seed).bf16(rows, 50), "k": 16}


@case("topk_index", "f32")
def _f32(seed: int) -> dict[str, Any]:
    return {"scores": Draw(seed).f32(9, 200), "k": 33}


@case("topk_index", "ties")
def _ties(seed: int) -> dict[str, Any]:
    """Few distinct values, both zeros among them, so that the cut falls inside a plateau."""
    scores = Draw(seed).bf16(17, 64).round()
    scores[:, 5::7] = -0.0
    return {"scores": scores, "k": 20}


@case("topk_index", "plateau")
def _plateau(seed: int) -> dict[str, Any]:
    return {"scores": torch.full((3, 70), -2.5, dtype=torch.bfloat16), "k": 17}


@case("topk_index", "few-candidates-infinities-and-nan")
def _special(seed: int) -> dict[str, Any]:
    scores = Draw(seed).bf16(6, 24)
    scores[0] = float("-inf")
    scores[1] = float("nan")
    scores[2, 3:] = float("-inf")
    scores[3, ::2] = float("nan")
    scores[4, 7] = float("inf")
    scores[5, 0] = torch.finfo(torch.bfloat16).min
    return {"scores": scores, "k": 16}


@case("topk_index", "more-wanted-than-there-are")
def _short(seed: int) -> dict[str, Any]:
    return {"scores": Draw(seed).bf16(4, 5), "k": 8}


@case("topk_index", "many-candidates")
def _many(seed: int) -> dict[str, Any]:
    """More candidates than one tile holds, so that parts of a row are merged; few values, so that ties lie across."""
    return {"scores": Draw(seed).bf16(3, 5003, scale=30.0).round(), "k": 600}


@case("topk_index", "merged-twice")
def _twice(seed: int) -> dict[str, Any]:
    """So many candidates that what merges the parts of a row does so in parts; one row's good ones lie in one part."""
    scores = Draw(seed).bf16(2, 33_011, scale=30.0).round()
    scores[1, 9_000:11_500] += 500.0
    return {"scores": scores, "k": 2000}

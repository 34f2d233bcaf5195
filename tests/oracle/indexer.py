"""Lightning indexer: FP4 scores of compressed entries, candidate pool, top-k."""

from __future__ import annotations

import torch
from torch import Tensor

from .arith import Arith
from .choices import Rows, as_mask, select

_LARGEST_BF16 = float(torch.finfo(torch.bfloat16).max)


def visible(tokens: int, entries: int, ratio: int) -> Tensor:
    """bool [tokens, entries]: entry j closes with token (j+1)*ratio - 1 and is seen from there on."""
    end = (torch.arange(entries) + 1) * ratio - 1
    return end[None, :] <= torch.arange(tokens)[:, None]


def index_scores(arith: Arith, query: Tensor, key: Tensor, head_weight: Tensor) -> Tensor:
    """Sum over heads of weight * relu(q . k), heads ascending, as bf16 values in float32.

    query [T, H, Di] and key [C, Di] hold dequantised FP4 values; head_weight is bf16 [T, H]. Result [T, C].
    """
    head_weight = arith.wide(head_weight)
    total = torch.zeros(query.shape[0], key.shape[0], dtype=arith.dtype)
    for h in range(query.shape[1]):
        total = total + head_weight[:, h, None] * arith.linear(query[:, h], key).clamp(min=0)
    return arith.bf16(total).to(torch.float32)


def block_scores(scores: Tensor, seen: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Best visible score of each block of `size` entries [T, B], and which blocks have a visible entry.

    The block with the newest visible entry scores +inf, so it is always kept.
    """
    tokens, entries = scores.shape
    blocks = -(-entries // size)
    padded = torch.full((tokens, blocks * size), -torch.inf)
    padded[:, :entries] = scores.clamp(max=_LARGEST_BF16).masked_fill(~seen, -torch.inf)
    result = padded.view(tokens, blocks, size).amax(dim=-1)
    count = seen.sum(dim=-1)
    some = count > 0
    result[some, (count[some] - 1) // size] = torch.inf
    live = torch.arange(blocks)[None, :] * size < count[:, None]
    return result, live


def candidate_pool(
    scores: Tensor, seen: Tensor, size: int, k: int, rows: Rows, layer: int
) -> tuple[list[list[int]], list[float], Tensor]:
    """The k best blocks of each query, their margins, and the visible entries in them as bool [T, C]."""
    best, live = block_scores(scores, seen, size)
    picked, gaps = select(best, live, live, k, rows, layer)
    inside = as_mask(picked, best.shape[1]).repeat_interleave(size, dim=1)[:, : scores.shape[1]]
    return [sorted(p) for p in picked], gaps, inside & seen

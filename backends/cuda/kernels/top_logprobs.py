"""`top_logprobs`: the selection of `_select`, then each chosen value goes to its rank."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels import _select
from tandem.backends.cuda.kernels._select import best_indices, order_key
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
TILE, OTHERS = 64, 128


@triton.jit
def _rank(values, index, ids, logprobs, width, n, TILE: tl.constexpr, OTHERS: tl.constexpr):
    """A tile of one row's choice: the rank of a place is the number of places that come before it."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    chosen = tl.load(index + row * n + place, mask=place < n, other=-1)
    value = tl.load(values + row * width + chosen, mask=chosen >= 0, other=float("-inf"))
    key = order_key(value, 32)[:, None]
    rank = tl.zeros((TILE,), tl.int32)
    for start in range(0, n, OTHERS):
        other = start + tl.arange(0, OTHERS)
        compared = tl.load(index + row * n + other, mask=other < n, other=-1)
        theirs = tl.load(values + row * width + compared, mask=compared >= 0, other=float("-inf"))
        their_key = order_key(theirs, 32)[None, :]
        before = (their_key > key) | ((their_key == key) & (other[None, :] < place[:, None]))
        rank += tl.sum(before.to(tl.int32), axis=1)
    tl.store(ids + row * n + rank, chosen, mask=place < n)
    tl.store(logprobs + row * n + rank, value, mask=place < n)


def top_logprobs(values: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """See core/ops/top_logprobs.py."""
    rows, width = values.shape
    index = best_indices(values, n)
    ids, logprobs = torch.empty_like(index), values.new_empty((rows, n))
    grid = (rows, triton.cdiv(n, TILE))
    launch(_rank, grid, values, index, ids, logprobs, width, n, TILE=TILE, OTHERS=OTHERS)
    return ids, logprobs


def _traffic(values: Tensor, n: int) -> tuple[int, int]:
    """The selection, then chosen values once: each tile of a row finds them in the cache."""
    read, written = _select.traffic(values, n)
    chosen = values.shape[0] * n * 8
    return read + chosen, written + chosen


OPS: dict[str, Any] = {"top_logprobs": top_logprobs}
TRAFFIC: dict[str, Any] = {"top_logprobs": _traffic}

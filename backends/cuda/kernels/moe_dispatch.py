"""`moe_dispatch` as a counting sort: pairs of (token, k) are ranked without atomics, then rows go to their places.

The place of a pair is the number of pairs of lower experts, plus those of its own expert that stand before it.  Pairs
are taken in chunks of a fixed size: one launch counts experts by chunk, the next ranks the pairs of each chunk behind
the chunks before it.  Places are integers, so they do not depend on how the pairs are split.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda import activations
from tandem.backends.cuda.kernels._codec import sf_offset
from tandem.backends.cuda.launch import launch
from tandem.contract.types import MoEBatch, QFormat, QTensor

Tensor = torch.Tensor
CHUNK = 512  # pairs that one program ranks; it compares each with all before it
COLUMNS = 2048  # of a row that one program copies: 16 bytes a thread


@triton.jit
def _owners(experts, row_slot, first, count, pairs, pair, K: tl.constexpr):
    """Local expert of each pair; ``count`` for one that is not held here, of a padding row, or past the end."""
    inside = pair < pairs
    expert = tl.load(experts + pair, mask=inside, other=-1) - first
    slot = tl.load(row_slot + pair // K, mask=inside, other=-1)
    return tl.where((expert >= 0) & (expert < count) & (slot >= 0), expert, count)


@triton.jit
def _count(experts, row_slot, counts, first, count, pairs, K: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr):
    """A program counts the pairs of one chunk by local expert."""
    chunk = tl.program_id(0)
    owner = _owners(experts, row_slot, first, count, pairs, chunk * CHUNK + tl.arange(0, CHUNK), K)
    found = tl.histogram(owner, BINS, mask=owner < count)
    tl.store(counts + chunk * BINS + tl.arange(0, BINS), found)


@triton.jit
def _counted(counts, chunk, chunks, BINS: tl.constexpr, TILE: tl.constexpr):
    """Pairs by expert of all chunks, and of those before ``chunk``."""
    total = tl.zeros((BINS,), tl.int32)
    before = tl.zeros((BINS,), tl.int32)
    for start in range(0, chunks, TILE):
        other = start + tl.arange(0, TILE)
        found = tl.load(
            counts + other[:, None] * BINS + tl.arange(0, BINS)[None, :], mask=(other < chunks)[:, None], other=0
        )
        total += tl.sum(found, axis=0)
        before += tl.sum(tl.where((other < chunk)[:, None], found, 0), axis=0)
    return total, before


@triton.jit
def _rank(experts, row_slot, first, count, pairs, chunk, owner, K: tl.constexpr, CHUNK: tl.constexpr):
    """How many pairs of the same expert stand before each pair of a chunk, in that chunk."""
    own = tl.arange(0, CHUNK)
    rank = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, CHUNK, 32):
        other = start + tl.arange(0, 32)
        theirs = _owners(experts, row_slot, first, count, pairs, chunk * CHUNK + other, K)
        same = (theirs[None, :] == owner[:, None]) & (other[None, :] < own[:, None])
        rank += tl.sum(same.to(tl.int32), axis=1)
    return rank


@triton.jit
def _place(
    experts,
    row_slot,
    weights,
    counts,
    source,
    ends,
    sorted_weights,
    first,
    count,
    pairs,
    chunks,
    K: tl.constexpr,
    BINS: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program gives the pairs of one chunk their places and moves their weights; the first also writes ``ends``.

    Without ``counts`` there is one chunk, which is counted here.
    """
    chunk = tl.program_id(0)
    pair = chunk * CHUNK + tl.arange(0, CHUNK)
    owner = _owners(experts, row_slot, first, count, pairs, pair, K)
    mine = owner < count
    if counts is None:
        total = tl.histogram(owner, BINS, mask=mine)
        before = tl.zeros((BINS,), tl.int32)
    else:
        total, before = _counted(counts, chunk, chunks, BINS, TILE)
    end = tl.cumsum(total, axis=0)
    bins = tl.arange(0, BINS)
    tl.store(ends + bins, end, mask=bins < tl.where(chunk == 0, count, 0))
    start = tl.gather(end - total + before, tl.where(mine, owner, 0), axis=0)
    place = start + _rank(experts, row_slot, first, count, pairs, chunk, owner, K, CHUNK)
    inside = pair < pairs
    tl.store(source + pair, tl.where(mine, place, -1), mask=inside)
    weight = tl.load(weights + pair, mask=inside, other=0.0)
    tl.store(sorted_weights + place, weight, mask=mine)


@triton.jit
def _scatter(codes, scale, source, to_codes, to_scale, width, K: tl.constexpr, COLUMNS: tl.constexpr):
    """A program reads a part of one row and writes it to each of the row's places.

    Scale bytes move as words of four groups, which is how they lie in a tile; padding groups come along.
    """
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    code = tl.load(codes + token * width + column, mask=column < width)
    groups = width // 32
    group = tl.program_id(1) * (COLUMNS // 32) + tl.arange(0, COLUMNS // 128) * 4
    word = tl.load(scale + sf_offset(token, group, groups) // 4, mask=group < groups)
    for i in tl.static_range(K):
        place = tl.load(source + token * K + i).to(tl.int64)
        here = place >= 0
        tl.store(to_codes + place * width + column, code, mask=column < tl.where(here, width, 0))
        tl.store(to_scale + sf_offset(place, group, groups) // 4, word, mask=group < tl.where(here, groups, 0))


def moe_dispatch(xq: QTensor, experts: Tensor, weights: Tensor, row_slot: Tensor, local: tuple[int, int]) -> MoEBatch:
    """See core/ops/moe_dispatch.py.  Rows past the last end hold anything."""
    xq.require("moe_dispatch", QFormat.MXFP8, activations.LAYOUT)
    (rows, k), width, device = experts.shape, xq.shape[1], experts.device
    pairs, count = rows * k, local[1] - local[0]
    chunks = max(1, triton.cdiv(pairs, CHUNK))  # without rows one program still writes ends
    bins = max(32, triton.next_power_of_2(count))
    source = torch.empty((rows, k), dtype=torch.int32, device=device)
    ends = torch.empty((count,), dtype=torch.int32, device=device)
    sorted_weights = torch.empty((pairs,), dtype=torch.float32, device=device)
    batch = MoEBatch(activations.empty(pairs, width, device), sorted_weights, ends, source)
    shape = {"K": k, "BINS": bins, "CHUNK": CHUNK, "num_warps": 8}
    counts = None
    if chunks > 1:
        counts = torch.empty((chunks, bins), dtype=torch.int32, device=device)
        launch(_count, (chunks,), experts, row_slot, counts, local[0], count, pairs, **shape)
    outputs = (source, ends, sorted_weights)
    launch(
        _place,
        (chunks,),
        experts,
        row_slot,
        weights,
        counts,
        *outputs,
        local[0],
        count,
        pairs,
        chunks,
        TILE=16,
        **shape,
    )
    words, to_words = xq.scale.view(torch.int32), batch.x.scale.view(torch.int32)
    grid = (rows, triton.cdiv(width, COLUMNS))
    launch(_scatter, grid, xq.data, words, source, batch.x.data, to_words, width, K=k, COLUMNS=COLUMNS)
    return batch


def _traffic(xq: QTensor, experts: Tensor, local: tuple[int, int], **others: Any) -> tuple[int, int]:
    """As if all pairs stayed here.  Ids are read again for each launch; counts stay in L2."""
    (rows, k), width = experts.shape, xq.shape[1]
    row, pairs = width + width // 32, rows * k
    return rows * (row + 4) + pairs * 4 * 4, pairs * (row + 8) + (local[1] - local[0]) * 4


OPS: dict[str, Any] = {"moe_dispatch": moe_dispatch}
TRAFFIC: dict[str, Any] = {"moe_dispatch": _traffic}

"""`aux.verify_rows` in two launches: how many drafts of each request get a row, then where these rows stand.

A draft gets a row when fewer candidates than there are rows left stand before it in the order of the op, so each
program counts these for the drafts of a few requests, by comparing them with all.  Numbers of drafts are those of a
block times the requests that run at once, for which this is cheaper than a sort and needs no second pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
REQUESTS = 4  # whose drafts one program ranks
OTHERS = 16  # requests they are compared with at a time
ROWS = 64  # that one program places


@triton.jit
def _standing(slots, rates, drafts, length, limit, most, request, place, requests, BLOCK: tl.constexpr):
    """Whether drafts (request, place) are candidates, and the rate they go by; -inf for those that are not."""
    slot = tl.load(slots + request, mask=request < requests, other=-1).to(tl.int64)
    real = (slot >= 0) & (place < BLOCK)
    room = tl.load(limit + slot, mask=real, other=0) - 1 - tl.load(length + slot, mask=real, other=0)
    room = tl.minimum(room, tl.load(most + request, mask=real, other=0) + 1)
    candidate = real & (1 + place < room)
    lowest = tl.full(place.shape, float("inf"), tl.float32)
    for before in tl.static_range(BLOCK):
        judged = real & (before <= place)
        candidate = candidate & (tl.load(drafts + slot * BLOCK + before, mask=judged, other=0) >= 0)
        rate = tl.load(rates + slot * BLOCK + before, mask=judged, other=float("inf"))
        lowest = tl.minimum(lowest, tl.where(rate != rate, 0.0, rate))
    return candidate, tl.where(candidate, lowest, float("-inf"))


@triton.jit
def _share(
    slots,
    rates,
    drafts,
    length,
    limit,
    most,
    counts,
    requests,
    rows,
    BLOCK: tl.constexpr,
    PLACES: tl.constexpr,
    REQUESTS: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """A program ranks the drafts of some requests among those of all; PLACES: BLOCK rounded up to a power of two."""
    own = tl.arange(0, REQUESTS * PLACES)
    request = tl.program_id(0) * REQUESTS + own // PLACES
    place = own % PLACES
    candidate, rate = _standing(slots, rates, drafts, length, limit, most, request, place, requests, BLOCK)
    rank = tl.zeros((REQUESTS * PLACES,), tl.int32)
    free = rows
    for start in range(0, requests, OTHERS):
        other = tl.arange(0, OTHERS * PLACES)
        rival, turn = start + other // PLACES, other % PLACES
        theirs = _standing(slots, rates, drafts, length, limit, most, rival, turn, requests, BLOCK)[1]
        counted = (rival < requests) & (turn < BLOCK)
        # A draft that is none has the rate -inf and stands after all that have more.
        earlier = (rival * PLACES + turn)[None, :] < (request * PLACES + place)[:, None]
        ahead = (theirs[None, :] > rate[:, None]) | ((theirs[None, :] == rate[:, None]) & earlier)
        rank += tl.sum((ahead & counted[None, :]).to(tl.int32), axis=1)
        real = start + tl.arange(0, OTHERS)
        free -= tl.sum((tl.load(slots + real, mask=real < requests, other=-1) >= 0).to(tl.int32), axis=0)
    chosen = tl.reshape((candidate & (rank < free)).to(tl.int32), (REQUESTS, PLACES))
    mine = tl.program_id(0) * REQUESTS + tl.arange(0, REQUESTS)
    slot = tl.load(slots + mine, mask=mine < requests, other=-1)
    tl.store(counts + mine, tl.where(slot >= 0, 1 + tl.sum(chosen, axis=1), 0), mask=mine < requests)


@triton.jit
def _rows(
    slots,
    counts,
    slot,
    offset,
    chunk_start,
    chunk_end,
    requests,
    rows,
    ROWS: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """A program finds the request of each of its rows: the first whose rows end behind it."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    owner = tl.zeros((ROWS,), tl.int32)
    start = tl.zeros((ROWS,), tl.int32)
    end = tl.full((ROWS,), 0x7FFFFFFF, tl.int32)
    before = 0
    for first in range(0, requests, OTHERS):
        request = first + tl.arange(0, OTHERS)
        count = tl.load(counts + request, mask=request < requests, other=0)
        ends = (before + tl.cumsum(count, axis=0))[None, :]
        passed = ends <= row[:, None]
        owner += tl.sum(passed.to(tl.int32), axis=1)
        start = tl.maximum(start, tl.max(tl.where(passed, ends, 0), axis=1))
        end = tl.minimum(end, tl.min(tl.where(passed, 0x7FFFFFFF, ends), axis=1))
        before += tl.sum(count, axis=0)
    used = row < before
    inside = row < rows
    tl.store(slot + row, tl.load(slots + owner, mask=used, other=-1), mask=inside)
    tl.store(offset + row, tl.where(used, row - start, 0), mask=inside)
    tl.store(chunk_start + row, tl.where(used, start, row), mask=inside)
    tl.store(chunk_end + row, tl.where(used, end, row + 1), mask=inside)


def verify_rows(
    slots: Tensor, rates: Tensor, drafts: Tensor, length: Tensor, limit: Tensor, most: Tensor, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See core/ops/aux_verify_rows.py."""
    requests, block = slots.shape[0], drafts.shape[1]
    counts = torch.empty_like(slots)
    slot, offset, chunk_start, chunk_end = (slots.new_empty((rows,)) for _ in range(4))
    state = (slots, rates, drafts, length, limit, most)
    sizes = {"BLOCK": block, "PLACES": triton.next_power_of_2(block), "REQUESTS": REQUESTS}
    launch(_share, (triton.cdiv(requests, REQUESTS),), *state, counts, requests, rows, OTHERS=OTHERS, **sizes)
    outputs = (slot, offset, chunk_start, chunk_end)
    launch(_rows, (triton.cdiv(rows, ROWS),), slots, counts, *outputs, requests, rows, ROWS=ROWS, OTHERS=OTHERS)
    return *outputs, counts


def _traffic(slots: Tensor, drafts: Tensor, rows: int, **others: Any) -> tuple[int, int]:
    """The state of each request once: programs read it together, and it stays in the cache."""
    requests, block = slots.shape[0], drafts.shape[1]
    return requests * (16 + block * 8), requests * 4 + rows * 16


OPS: dict[str, Any] = {"aux.verify_rows": verify_rows}
TRAFFIC: dict[str, Any] = {"aux.verify_rows": _traffic}

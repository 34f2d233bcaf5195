"""`engram_context`: look-back tokens of all rows, then the history of the last rows of each request.

Two launches: a row late in a chunk may write the place from which an early one reads what was before the step.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch
from tandem.contract.types import Rows

Tensor = torch.Tensor
ROWS = 128


@triton.jit
def _engram_context(
    ids,
    positions,
    slots,
    starts,
    roles,
    vocabulary,
    history,
    context,
    rows,
    scratch,
    pad,
    RING: tl.constexpr,
    N: tl.constexpr,
    ROWS: tl.constexpr,
):
    """ROWS rows; column s is the s-th predecessor, of this step's rows where it is one, else of the history."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    position = tl.load(positions + row, mask=live, other=0)
    slot = tl.load(slots + row, mask=live, other=-1)
    start = tl.load(starts + row, mask=live, other=0)
    ring = history + tl.where(slot < 0, scratch, slot).to(tl.int64) * RING
    blocked = row < 0
    for back in tl.static_range(N):
        before = row - back
        reached = live & (position >= back)
        token = own_token(ids, roles, vocabulary, before, reached & (before >= start))
        stored = tl.load(ring + (position - back) % RING, mask=reached & (before < start), other=-1)
        token = tl.where(before >= start, token, stored)
        blocked = blocked | (position < back) | (token < 0)
        tl.store(context + row.to(tl.int64) * N + back, tl.where(blocked, pad, token), mask=live)


@triton.jit
def _engram_remember(
    ids, positions, slots, ends, roles, vocabulary, history, rows, RING: tl.constexpr, ROWS: tl.constexpr
):
    """The last RING rows of each request write their compressed id, -1 for a token of an image."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < rows
    slot = tl.load(slots + row, mask=live, other=-1)
    keep = (slot >= 0) & (row >= tl.load(ends + row, mask=live, other=0) - RING)
    position = tl.load(positions + row, mask=keep, other=0)
    token = own_token(ids, roles, vocabulary, row, keep)
    tl.store(history + slot.to(tl.int64) * RING + position % RING, token, mask=keep)


@triton.jit
def own_token(ids, roles, vocabulary, row, used):
    """Compressed ids of rows of this step; -1 for tokens of images, and where not used."""
    text = used & (tl.load(roles + row, mask=used, other=1) == 0)
    return tl.load(vocabulary + tl.load(ids + row, mask=text, other=0), mask=text, other=-1)


def engram_context(rows: Rows, vocabulary: Tensor, history: Tensor, pad: int, n: int) -> Tensor:
    """See core/ops/engram_context.py."""
    count, (slots, ring) = rows.ids.shape[0], history.shape
    context = torch.empty((count, n), dtype=torch.int32, device=rows.ids.device)
    grid = (-(-count // ROWS),)
    shape = {"RING": ring, "ROWS": ROWS, "num_warps": 4}
    launch(
        _engram_context,
        grid,
        *(rows.ids, rows.positions, rows.slot, rows.chunk_start, rows.roles),
        *(vocabulary, history, context, count, slots - 1, pad),
        **shape,
        N=n,
    )
    launch(
        _engram_remember,
        grid,
        *(rows.ids, rows.positions, rows.slot, rows.chunk_end, rows.roles),
        *(vocabulary, history, count),
        **shape,
    )
    return context


def _traffic(rows: Rows, n: int, **others: Any) -> tuple[int, int]:
    """Both launches read the rows and gather from the map; the history of every row is counted as read and written."""
    count = rows.ids.shape[0]
    return 4 * count * (2 * 5 + 2 + n - 1), 4 * count * (n + 1)


OPS: dict[str, Any] = {"engram_context": engram_context}
TRAFFIC: dict[str, Any] = {"engram_context": _traffic}
WHY: dict[str, str] = {
    "engram_context": "reads of the history come before all writes, in a launch of their own, which reads the rows too"
}

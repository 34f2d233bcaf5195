"""`engram_context`: the last n compressed token ids of each row.

Args: rows (Rows), vocabulary[V] i32 (compressed ids), history[R+1,Rh] i32, pad, n -> context[T,n] i32; writes
history

Reads the rows (ids, positions, slot, chunk_start, chunk_end, roles), vocabulary map int32 [V], history int32
[R + 1, Rh] (compressed id by position mod Rh, -1 for an image token; last slot scratch), pad (compressed id),
n. Returns int32 [T, n], column s being the s-th predecessor.  Before the sequence start, and from the nearest
image token on backwards, every column is pad.  Writes the history of the last Rh rows of each request.  Class
X.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tandem.contract.cases import Draw, PartlyUsed, step_rows
from tandem.contract.opspec import case, op
from tandem.contract.types import Rows

Tensor = torch.Tensor


@op("engram_context", classes={"context": "X", "history": "X"}, attrs=("n",))
def engram_context(rows: Rows, vocabulary: Tensor, history: Tensor, pad: int, n: int) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    ring = history.shape[1]
    index = torch.arange(rows.ids.shape[0], device=rows.ids.device, dtype=torch.int64)
    slot, position = rows.slot.to(torch.int64), rows.positions.to(torch.int64)
    own = vocabulary.index_select(0, rows.ids)
    own = torch.where(rows.roles == 0, own, torch.full_like(own, -1))
    columns = []
    blocked = torch.zeros_like(own, dtype=torch.bool)
    for back in range(n):
        here = index - back
        inside = here >= rows.chunk_start
        stored = history[slot, (position - back).remainder(ring)]
        token = torch.where(inside, own.index_select(0, here.clamp_min(0)), stored)
        blocked = blocked | (position < back) | (token < 0)
        columns.append(torch.where(blocked, torch.full_like(token, pad), token))
    target = torch.where(index >= rows.chunk_end - ring, slot, torch.full_like(slot, -1))
    history[target, position.remainder(ring)] = own
    return torch.stack(columns, dim=1)


@case("engram_context", "prefill-from-the-start")
def _prefill(seed: int) -> dict[str, Any]:
    return _arguments(seed, [(1, 0, 17)], 4)


@case("engram_context", "decode")
def _decode(seed: int) -> dict[str, Any]:
    return _arguments(seed, [(0, 6, 1), (2, 1, 1), (1, 40, 1), (3, 0, 1)], 4)


@case("engram_context", "mixed-with-padding-and-images")
def _mixed(seed: int) -> dict[str, Any]:
    return _arguments(seed, [(2, 5, 1), (-1, 0, 2), (0, 3, 16), (1, 0, 2), (-1, 0, 1)], 4, images=True)


@case("engram_context", "ring-longer-than-the-context")
def _ring(seed: int) -> dict[str, Any]:
    return _arguments(seed, [(1, 2, 3), (0, 9, 12)], 7, images=True)


def _arguments(
    seed: int, chunks: Sequence[tuple[int, int, int]], ring: int, images: bool = False
) -> dict[str, Any]:
    """Four request slots; history that no row needs is junk."""
    draw = Draw(seed)
    count = sum(chunk[2] for chunk in chunks)
    roles = draw.i32(0, 5, count).eq(0).to(torch.int32) if images else None
    history, used = draw.i32(0, 20, 5, ring), torch.zeros((5, ring), dtype=torch.bool)
    for slot, first, _ in chunks:
        for position in range(max(first - ring, 0), first):
            used[slot, position % ring] = slot >= 0
            if images and position % 4 == 3:
                history[slot, position % ring] = -1
    return {
        "rows": step_rows(chunks, draw.i32(0, 30, count), roles),
        "vocabulary": draw.i32(0, 20, 30),
        "history": PartlyUsed(history, used),
        "pad": 7,
        "n": 4,
    }

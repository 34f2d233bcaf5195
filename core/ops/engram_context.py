"""`engram_context`: the last n compressed token ids of each row.

Reads the rows (ids, positions, slot, chunk_start, chunk_end, roles), vocabulary map int32 [V], history int32 [R + 1, Rh]
(compressed id by position mod Rh, -1 for an image token; last slot scratch), pad (compressed id), n.
Returns int32 [T, n], column s being the s-th predecessor.  Before the sequence start, and from the nearest image token
on backwards, every column is pad.  Writes the history of the last Rh rows of each request.  Class X.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op
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

"""`aux.accept`: how much of each request's drafts was taken, and where the request goes on.

Args: token[N] i32, accepted[N] i32, first[n] i32, count[n] i32, base[n] i32, slots[n] i32, last_token[R+1] i32,
length[R+1] i32 -> emitted[n] i32; writes last_token and length

Reads token and accepted int32 [N] of rows, as `spec_verify` gives them.  A segment is the rows of one request:
first int32 [n] its first row, count int32 [n] how many (0: padding), base int32 [n] the position of the first, slots
int32 [n] the request's slot (-1: scratch).  All of its rows but the last judge a draft.  Returns emitted int32 [n]: 1
more than the leading rows, of those that judge, that accepted; 0 for padding.  Writes last_token[slot] = the last
token emitted, length[slot] = base + emitted (its position); padding writes to scratch.  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("aux.accept", classes={"emitted": "X", "last_token": "X", "length": "X"}, since=(1, 1))
def accept(
    token: Tensor,
    accepted: Tensor,
    first: Tensor,
    count: Tensor,
    base: Tensor,
    slots: Tensor,
    last_token: Tensor,
    length: Tensor,
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    rows = token.shape[0]
    row = torch.arange(rows, device=token.device)
    start = first.to(torch.int64).unsqueeze(-1)
    judges = (row >= start) & (row < start + count.unsqueeze(-1) - 1)
    # The first row that judges and refuses, else the last row of the segment.
    refusing = torch.where(judges & (accepted == 0), row, rows).amin(-1)
    last = torch.minimum(refusing, start.squeeze(-1) + count - 1)
    used = count > 0
    emitted = torch.where(used, last - first + 1, 0).to(torch.int32)
    slot = torch.where(used, slots, -1).to(torch.int64)
    last_token[slot] = token[last.clamp(0, rows - 1)]
    length[slot] = base + emitted
    return emitted


@case("aux.accept", "segments")
def segments(seed: int) -> dict[str, Any]:
    """All taken, none, some; a gap after a refusal; a single row; padding; a slot of -1."""
    draw = Draw(seed)

    def ints(*numbers: int) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    return {
        "token": draw.i32(0, 99, 19),
        "accepted": ints(1, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1),
        "first": ints(1, 5, 8, 12, 0, 13, 15),
        "count": ints(4, 3, 4, 1, 0, 2, 4),
        "base": ints(7, 0, 30, 5, 99, 41, 12),
        "slots": ints(3, 0, 5, 1, 2, -1, 4),
        "last_token": draw.i32(100, 199, 7),
        "length": draw.i32(100, 199, 7),
    }


@case("aux.accept", "long-segments")
def _long(seed: int) -> dict[str, Any]:
    """More rows than are looked at together: refused early, refused late, all taken."""
    draw = Draw(seed)
    accepted = torch.ones(123, dtype=torch.int32)
    accepted[[3, 35, 41 + 38]] = 0
    return {
        "token": draw.i32(0, 99, 123),
        "accepted": accepted,
        "first": torch.tensor([0, 41, 82], dtype=torch.int32),
        "count": torch.tensor([41, 41, 41], dtype=torch.int32),
        "base": draw.i32(0, 99, 3),
        "slots": torch.tensor([2, 0, 1], dtype=torch.int32),
        "last_token": draw.i32(100, 199, 4),
        "length": draw.i32(100, 199, 4),
    }

"""`aux.accept`: a program looks at the rows of one request."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
ROWS = 32  # looked at together; a request has one more than drafts in a block


@triton.jit
def _accept(token, accepted, first, count, base, slots, last_token, length, emitted, ROWS: tl.constexpr):
    """The last row that emits is the first that judges and refuses, else the last of the segment."""
    segment = tl.program_id(0)
    rows = tl.load(count + segment)
    start = tl.load(first + segment)
    last = rows - 1
    for begin in range(0, rows - 1, ROWS):
        row = begin + tl.arange(0, ROWS)
        taken = tl.load(accepted + start + row, mask=row < rows - 1, other=1)
        last = tl.minimum(last, tl.min(tl.where(taken == 0, row, rows - 1), axis=0))
    found = tl.where(rows > 0, last + 1, 0)
    tl.store(emitted + segment, found)
    slot = tl.load(slots + segment)
    if (rows > 0) & (slot >= 0):
        tl.store(last_token + slot, tl.load(token + start + last))
        tl.store(length + slot, tl.load(base + segment) + found)


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
    """See core/ops/aux_accept.py."""
    emitted = torch.empty_like(count)
    inputs = (token, accepted, first, count, base, slots)
    launch(_accept, (count.shape[0],), *inputs, last_token, length, emitted, ROWS=ROWS, num_warps=1)
    return emitted


def _traffic(accepted: Tensor, count: Tensor, **others: Any) -> tuple[int, int]:
    """Whether each row was taken, four numbers and a token of each request."""
    requests = count.shape[0]
    return accepted.shape[0] * 4 + requests * 20, requests * 12


OPS: dict[str, Any] = {"aux.accept": accept}
TRAFFIC: dict[str, Any] = {"aux.accept": _traffic}

"""`aux.draft_rows`: a program takes a run of keys, each (request, row, key of the row's block)."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
KEYS = 256


@triton.jit
def _draft_rows(
    anchor,
    position,
    slot,
    ids,
    positions,
    row_slot,
    context,
    own,
    keys,
    noise,
    total,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
):
    """What belongs to a row is written beside its first key."""
    at = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    inside = at < total
    row, key = at // BLOCK, at % BLOCK
    request, step = row // BLOCK, row % BLOCK
    token = tl.load(anchor + request, mask=inside, other=-1)
    owner = tl.load(slot + request, mask=inside, other=-1)
    first = tl.load(position + request, mask=inside, other=0)
    alive = (owner >= 0) & (token >= 0)
    tl.store(keys + at, tl.where(alive, owner * BLOCK + key, -1), mask=inside)
    leads = inside & (key == 0)
    tl.store(ids + row, tl.where(alive, tl.where(step == 0, token, noise), 0), mask=leads)
    tl.store(positions + row, tl.where(alive, first + step, 0), mask=leads)
    tl.store(row_slot + row, tl.where(alive, owner, -1), mask=leads)
    tl.store(context + row, tl.where(alive, first - 1, 0), mask=leads)
    tl.store(own + row, tl.where(alive, owner * BLOCK + step, -1), mask=leads)


def draft_rows(
    anchor: Tensor, position: Tensor, slot: Tensor, block: int, noise: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See core/ops/aux_draft_rows.py."""
    requests = anchor.shape[0]
    ids, positions, row_slot, context, own = (anchor.new_empty((requests, block)) for _ in range(5))
    keys = anchor.new_empty((requests, block, block))
    outputs = (ids, positions, row_slot, context, own, keys)
    total = requests * block * block
    grid = (triton.cdiv(total, KEYS),)
    launch(_draft_rows, grid, anchor, position, slot, *outputs, noise, total, BLOCK=block, KEYS=KEYS)
    return outputs


def _traffic(anchor: Tensor, block: int, **others: Any) -> tuple[int, int]:
    """Three numbers of each request, five of each row, and its keys."""
    requests = anchor.shape[0]
    return requests * 12, requests * block * (5 + block) * 4


OPS: dict[str, Any] = {"aux.draft_rows": draft_rows}
TRAFFIC: dict[str, Any] = {"aux.draft_rows": _traffic}

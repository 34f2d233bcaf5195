"""`aux.step_inputs`: a program takes a run of rows; host and device values are chosen row by row."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
ROWS = 128


@triton.jit
def _step_inputs(
    host_ids,
    host_positions,
    from_device,
    host_slot,
    last_token,
    length,
    limit,
    drafts,
    ids,
    positions,
    slot,
    rows,
    block,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    request = tl.load(host_slot + row, mask=inside, other=-1)
    real = request >= 0
    source = tl.load(from_device + row, mask=real, other=0)
    token = tl.load(host_ids + row, mask=real, other=-1)
    position = tl.load(host_positions + row, mask=real, other=0)
    device = source != 0
    drafted = source > 1 if drafts is not None else device & False
    newest = device & (drafted == 0)
    token = tl.where(newest, tl.load(last_token + request, mask=newest, other=-1), token)
    if drafts is not None:
        draft = drafts + request.to(tl.int64) * block + source - 2
        token = tl.where(drafted, tl.load(draft, mask=drafted, other=-1), token)
    position += tl.load(length + request, mask=device, other=0)
    alive = real & (token >= 0) & (position < tl.load(limit + request, mask=real, other=0))
    tl.store(ids + row, tl.where(alive, token, 0), mask=inside)
    tl.store(positions + row, tl.where(alive, position, 0), mask=inside)
    tl.store(slot + row, tl.where(alive, request, -1), mask=inside)


def step_inputs(
    host_ids: Tensor,
    host_positions: Tensor,
    from_device: Tensor,
    host_slot: Tensor,
    last_token: Tensor,
    length: Tensor,
    limit: Tensor,
    drafts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See core/ops/aux_step_inputs.py."""
    rows = host_ids.shape[0]
    ids, positions, slot = (torch.empty_like(host_ids) for _ in range(3))
    launch(
        _step_inputs,
        (triton.cdiv(rows, ROWS),),
        host_ids,
        host_positions,
        from_device,
        host_slot,
        last_token,
        length,
        limit,
        drafts,
        ids,
        positions,
        slot,
        rows,
        0 if drafts is None else drafts.shape[1],
        ROWS=ROWS,
    )
    return ids, positions, slot


def _traffic(host_ids: Tensor, length: Tensor, **others: Any) -> tuple[int, int]:
    """Four host values of each row and three of its request, which the rows of a chunk share."""
    rows = host_ids.shape[0]
    return rows * 16 + min(rows, length.shape[0] - 1) * 12, rows * 12


OPS: dict[str, Any] = {"aux.step_inputs": step_inputs}
TRAFFIC: dict[str, Any] = {"aux.step_inputs": _traffic}

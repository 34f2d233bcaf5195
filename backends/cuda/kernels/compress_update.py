"""`compress_update`: a program per row pools the group that the row completes; the first row of a chunk also writes.

State is read before it is written without a launch between: of a chunk only the first ratio - 1 rows reach back to what
was before it, so one program does these rows, and then, behind a barrier, the writes of the whole chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.launch import launch
from tandem.contract.types import Rows

Tensor = torch.Tensor
COLUMNS = 128


@triton.jit
def _compress_update(
    value,
    gate,
    state,
    positions,
    slots,
    starts,
    ends,
    latent,
    WIDTH: tl.constexpr,
    RING: tl.constexpr,
    RATIO: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """COLUMNS columns of one row; those of the first rows of a chunk all in the program of the first."""
    row = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    slot = tl.load(slots + row).to(tl.int64)
    start = tl.load(starts + row)
    if slot >= 0:
        ring = state + slot * (RING * 2 * WIDTH) + column
        if row == start:
            end = tl.load(ends + row)
            for step in range(tl.minimum(RATIO - 1, end - row)):
                early = row + step
                pool(value, gate, ring, latent, tl.load(positions + early), early, start, column, WIDTH, RING, RATIO)
            tl.debug_barrier()
            kept = tl.minimum(RING, end - row)
            for step in range(kept):
                last = end - kept + step
                place = ring + tl.load(positions + last) % RING * (2 * WIDTH)
                source = last.to(tl.int64) * WIDTH + column
                tl.store(place, tl.load(gate + source, mask=inside), mask=inside)
                tl.store(place + WIDTH, tl.load(value + source, mask=inside), mask=inside)
        elif row >= start + RATIO - 1:
            pool(value, gate, ring, latent, tl.load(positions + row), row, start, column, WIDTH, RING, RATIO)


@triton.jit
def pool(
    value,
    gate,
    ring,
    latent,
    position,
    row,
    start,
    column,
    WIDTH: tl.constexpr,
    RING: tl.constexpr,
    RATIO: tl.constexpr,
):
    """Softmax over the gates of the RATIO positions up to this row, if they are a whole group; terms in their order."""
    if (position + 1) % RATIO == 0:
        inside = column < WIDTH
        peak = tl.full(column.shape, float("-inf"), tl.float32)
        for step in tl.static_range(RATIO):
            g = reach(gate, ring, position, row, start, column, inside, RATIO - 1 - step, WIDTH, RING)
            peak = tl.maximum(peak, g)
        total = tl.zeros(column.shape, tl.float32)
        pooled = tl.zeros(column.shape, tl.float32)
        for step in tl.static_range(RATIO):
            g = reach(gate, ring, position, row, start, column, inside, RATIO - 1 - step, WIDTH, RING)
            v = reach(value, ring + WIDTH, position, row, start, column, inside, RATIO - 1 - step, WIDTH, RING)
            weight = tl.exp(g - peak)
            total += weight
            pooled += weight * v
        tl.store(latent + row.to(tl.int64) * WIDTH + column, tl.div_rn(pooled, total).to(tl.bfloat16), mask=inside)


@triton.jit
def reach(array, ring, position, row, start, column, inside, back, WIDTH: tl.constexpr, RING: tl.constexpr):
    """What belongs to the position `back` before a row's: of this step's rows where it is in the chunk, else stored."""
    here = array + (row - back).to(tl.int64) * WIDTH + column
    stored = ring + (position - back) % RING * (2 * WIDTH)
    return tl.load(tl.where(row - back >= start, here, stored), mask=inside, other=0.0)


def compress_update(value: Tensor, gate: Tensor, state: Tensor, rows: Rows, ratio: int) -> Tensor:
    """See core/ops/compress_update.py."""
    count, width = value.shape
    latent = torch.empty((count, width), dtype=torch.bfloat16, device=value.device)
    launch(
        _compress_update,
        (count, -(-width // COLUMNS)),
        *(value, gate, state, rows.positions, rows.slot, rows.chunk_start, rows.chunk_end, latent),
        **{"WIDTH": width, "RING": state.shape[1], "RATIO": ratio, "COLUMNS": COLUMNS, "num_warps": 1},
    )
    return latent


def _traffic(value: Tensor, state: Tensor, ratio: int, **others: Any) -> tuple[int, int]:
    """Rows shared evenly by all requests: each row is read for its group, and found in the cache when it becomes state;
    a request's first group has terms of the state."""
    (count, width), requests = value.shape, state.shape[0] - 1
    kept = min(count, requests * state.shape[1])
    read = 8 * value.numel() + 8 * width * min(count, requests) * (ratio - 1)
    return read, 2 * value.numel() // ratio + 8 * width * kept


OPS: dict[str, Any] = {"compress_update": compress_update}
TRAFFIC: dict[str, Any] = {"compress_update": _traffic}

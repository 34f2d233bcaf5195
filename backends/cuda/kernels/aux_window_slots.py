"""`aux.window_slots`: a program writes the windows of a few rows, whole."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels._paging import look_up, table_rows
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
ROWS = 8


@triton.jit
def _window_slots(
    positions,
    slot,
    table,
    first,
    out,
    rows,
    columns,
    BLOCK_ENTRIES: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    position = tl.load(positions + row, mask=inside, other=0)
    request = tl.load(slot + row, mask=inside, other=-1)
    lowest = tl.maximum(tl.load(first + request, mask=request >= 0, other=0), 0)
    place = tl.arange(0, WIDTH)[None, :]
    read = position[:, None] - (WINDOW - 1) + place
    valid = (read >= lowest[:, None]) & (request >= 0)[:, None] & (place < WINDOW)
    found = look_up(read, table_rows(table, request, columns)[:, None], columns, valid, BLOCK_ENTRIES, True)
    tl.store(out + row.to(tl.int64)[:, None] * WINDOW + place, found, mask=inside[:, None] & (place < WINDOW))


def window_slots(
    positions: Tensor, slot: Tensor, table: Tensor, first: Tensor, block_entries: int, window: int
) -> Tensor:
    """See core/ops/aux_window_slots.py."""
    rows = positions.shape[0]
    out = positions.new_empty((rows, window))
    launch(
        _window_slots,
        (triton.cdiv(rows, ROWS),),
        positions,
        slot,
        table,
        first,
        out,
        rows,
        table.shape[1],
        BLOCK_ENTRIES=block_entries,
        WINDOW=window,
        ROWS=ROWS,
        WIDTH=triton.next_power_of_2(window),
    )
    return out


def _traffic(positions: Tensor, block_entries: int, window: int, **others: Any) -> tuple[int, int]:
    """Position, slot, lowest position and the table entries of the blocks a window meets."""
    rows = positions.shape[0]
    return rows * (12 + 4 * (window // block_entries + 1)), rows * window * 4


OPS: dict[str, Any] = {"aux.window_slots": window_slots}
TRAFFIC: dict[str, Any] = {"aux.window_slots": _traffic}

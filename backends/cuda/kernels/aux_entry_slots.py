"""`aux.entry_slots`: a program takes a run of rows, each of which looks up one block."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels._paging import look_up, table_rows
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
ROWS = 128


@triton.jit
def _entry_slots(
    positions,
    slot,
    table,
    out,
    rows,
    columns,
    BLOCK_ENTRIES: tl.constexpr,
    RATIO: tl.constexpr,
    WRAP: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    position = tl.load(positions + row, mask=inside, other=0)
    request = tl.load(slot + row, mask=inside, other=-1)
    complete = (request >= 0) & ((position + 1) % RATIO == 0)
    found = look_up(position // RATIO, table_rows(table, request, columns), columns, complete, BLOCK_ENTRIES, WRAP)
    tl.store(out + row, found, mask=inside)


def entry_slots(positions: Tensor, slot: Tensor, table: Tensor, block_entries: int, ratio: int, wrap: bool) -> Tensor:
    """See core/ops/aux_entry_slots.py."""
    rows = positions.shape[0]
    out = torch.empty_like(positions)
    launch(
        _entry_slots,
        (triton.cdiv(rows, ROWS),),
        positions,
        slot,
        table,
        out,
        rows,
        table.shape[1],
        BLOCK_ENTRIES=block_entries,
        RATIO=ratio,
        WRAP=wrap,
        ROWS=ROWS,
    )
    return out


def _traffic(positions: Tensor, **others: Any) -> tuple[int, int]:
    """Position, slot and one table entry of each row."""
    rows = positions.shape[0]
    return rows * 12, rows * 4


OPS: dict[str, Any] = {"aux.entry_slots": entry_slots}
TRAFFIC: dict[str, Any] = {"aux.entry_slots": _traffic}

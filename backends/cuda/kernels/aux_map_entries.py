"""`aux.map_entries`: a program maps a tile of one row's entries."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tandem.backends.cuda.kernels._paging import look_up, table_rows
from tandem.backends.cuda.launch import launch

Tensor = torch.Tensor
TILE = 1024


@triton.jit
def _map_entries(entries, slot, table, out, width, columns, BLOCK_ENTRIES: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = place < width
    start = row.to(tl.int64) * width
    entry = tl.load(entries + start + place, mask=inside, other=-1)
    request = tl.load(slot + row)
    entry = tl.where(request >= 0, entry, -1)
    found = look_up(entry, table_rows(table, request, columns), columns, entry >= 0, BLOCK_ENTRIES, False)
    tl.store(out + start + place, found, mask=inside)


def map_entries(entries: Tensor, slot: Tensor, table: Tensor, block_entries: int) -> Tensor:
    """See core/ops/aux_map_entries.py."""
    rows, width = entries.shape
    out = torch.empty_like(entries)
    tile = min(TILE, triton.next_power_of_2(width))
    grid = (rows, triton.cdiv(width, tile))
    launch(
        _map_entries,
        grid,
        entries,
        slot,
        table,
        out,
        width,
        table.shape[1],
        BLOCK_ENTRIES=block_entries,
        TILE=tile,
    )
    return out


def _traffic(entries: Tensor, table: Tensor, **others: Any) -> tuple[int, int]:
    """Entries and slots once, each table row once: entries that share a block find it in the cache."""
    rows, width = entries.shape
    return rows * (4 + 4 * width + 4 * min(width, table.shape[1])), rows * width * 4


OPS: dict[str, Any] = {"aux.map_entries": map_entries}
TRAFFIC: dict[str, Any] = {"aux.map_entries": _traffic}

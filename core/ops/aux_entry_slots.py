"""`aux.entry_slots`: where each row's cache entry goes.

Args: positions[T] i32, slot[T] i32, table[R+1,NB] i32, block_entries, ratio, wrap -> [T] i32: write slot of the
entry the row completes, else -1

Reads positions and slot int32 [T], table int32 [R + 1, NB], block_entries, ratio r, wrap. Returns int32 [T]:
the slot of entry position // r where (position + 1) % r == 0, else -1; -1 for padding rows. With wrap the
table is indexed by block mod NB.  A table entry of -1 holds no block and gives -1.  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("aux.entry_slots", classes={"slots": "X"}, attrs=("ratio",))
def entry_slots(
    positions: Tensor, slot: Tensor, table: Tensor, block_entries: int, ratio: int, wrap: bool
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    entry = torch.div(positions, ratio, rounding_mode="floor")
    complete = ((positions + 1).remainder(ratio) == 0) & (slot >= 0)
    return look_up(entry, slot, table, block_entries, complete, wrap)


def look_up(
    entry: Tensor, slot: Tensor, table: Tensor, block_entries: int, valid: Tensor, wrap: bool = False
) -> Tensor:
    """Entry numbers (same shape as slot, or with one more axis) -> cache slots, -1 where not valid."""
    block = torch.div(entry, block_entries, rounding_mode="floor")
    block = block.remainder(table.shape[1]) if wrap else block.clamp(0, table.shape[1] - 1)
    row = slot.to(torch.int64)
    row = row.unsqueeze(-1) if entry.dim() > slot.dim() else row
    held = table[row, block.to(torch.int64)]
    found = held * block_entries + entry.remainder(block_entries)
    return torch.where(valid & (held >= 0), found, torch.full_like(found, -1))


@case("aux.entry_slots", "ratio-one-wrapped", ROWS)
def _wrapped(seed: int, rows: int) -> dict[str, Any]:
    return _arguments(seed, rows, 1, True)


@case("aux.entry_slots", "ratio-two", ROWS)
def _two(seed: int, rows: int) -> dict[str, Any]:
    return _arguments(seed, rows, 2, False)


def _arguments(seed: int, rows: int, ratio: int, wrap: bool) -> dict[str, Any]:
    """Three requests with eight blocks of four entries, one not held; a wrapped table is gone round twice."""
    draw = Draw(seed)
    table = draw.block_table(3, 8)
    table[1, 2] = -1
    positions = draw.i32(0, 64 if wrap else 32 * ratio, rows)
    slot = draw.i32(-1, 3, rows)
    fixed = {"block_entries": 4, "ratio": ratio, "wrap": wrap}
    return {"positions": positions, "slot": slot, "table": table} | fixed

"""`aux.entry_slots`: where each row's cache entry goes.

Reads positions and slot int32 [T], table int32 [R + 1, NB], block_entries, ratio r, wrap.
Returns int32 [T]: the slot of entry position // r where (position + 1) % r == 0, else -1; -1 for padding rows.
With wrap the table is indexed by block mod NB.  A table entry of -1 holds no block and gives -1.  Class X.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op

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

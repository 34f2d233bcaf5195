"""`aux.window_slots`: the window each row reads.

Args: positions[T] i32, slot[T] i32, table[R+1,NW] i32, first[R+1] i32 (window_first), block_entries, window ->
[T,W] i32: read slots, ascending position, -1 none

Reads positions and slot int32 [T], window_table int32 [R + 1, NW], first int32 [R + 1] (lowest position whose
window entry exists, 0 unless a sequence was resumed without its window), block_entries, window W. Returns
int32 [T, W]: slots of positions p - W + 1 .. p, ascending; -1 below first and for padding rows.  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.ops.aux_entry_slots import look_up

Tensor = torch.Tensor


@op("aux.window_slots", classes={"slots": "X"}, attrs=("window",))
def window_slots(
    positions: Tensor, slot: Tensor, table: Tensor, first: Tensor, block_entries: int, window: int
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    back = torch.arange(1 - window, 1, device=positions.device, dtype=torch.int32)
    read = positions.unsqueeze(-1) + back
    lowest = first[slot.to(torch.int64)].clamp_min(0)
    valid = (read >= lowest.unsqueeze(-1)) & (slot >= 0).unsqueeze(-1)
    return look_up(read, slot, table, block_entries, valid, wrap=True)


@case("aux.window_slots", "starts-resumed-and-missing", ROWS)
def _some(seed: int, rows: int) -> dict[str, Any]:
    """The second request's window begins at position 21; a block of the third is not held."""
    draw = Draw(seed)
    table = draw.block_table(3, 8)
    table[2, 3] = -1
    first = torch.tensor([0, 21, 0, 0], dtype=torch.int32)
    positions, slot = draw.i32(0, 50, rows), draw.i32(-1, 3, rows)
    fixed = {"block_entries": 4, "window": 9}
    return {"positions": positions, "slot": slot, "table": table, "first": first} | fixed


@case("aux.window_slots", "long-context")
def _long(seed: int) -> dict[str, Any]:
    """Positions that 16 bits, and the 24 of f32, do not hold."""
    positions = torch.tensor([65_535, 65_536, 1_048_575, 16_777_217, 16_777_219], dtype=torch.int32)
    return _some(seed, 5) | {"positions": positions, "slot": torch.tensor([0, 1, 2, 0, 1], dtype=torch.int32)}

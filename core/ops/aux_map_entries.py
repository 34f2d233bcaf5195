"""`aux.map_entries`: entry numbers of a request to cache slots.

Args: entries[T,P] i32, slot[T] i32, table[R+1,NB] i32, block_entries -> [T,P] i32: slots (-1 stays)

Reads entries int32 [T, P] (-1: none), slot int32 [T], table int32 [R + 1, NB], block_entries.  Returns int32
[T, P].  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import FEW_ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.ops.aux_entry_slots import look_up

Tensor = torch.Tensor


@op("aux.map_entries", classes={"slots": "X"})
def map_entries(entries: Tensor, slot: Tensor, table: Tensor, block_entries: int) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    valid = (entries >= 0) & (slot >= 0).unsqueeze(-1)
    return look_up(entries, slot, table, block_entries, valid)


@case("aux.map_entries", "some-missing", FEW_ROWS)
def _some(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    table = draw.block_table(3, 8)
    table[0, 1] = -1
    return {
        "entries": draw.i32(-1, 32, rows, 7),
        "slot": draw.i32(-1, 3, rows),
        "table": table,
        "block_entries": 4,
    }

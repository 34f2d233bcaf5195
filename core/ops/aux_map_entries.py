"""`aux.map_entries`: entry numbers of a request to cache slots.

Reads entries int32 [T, P] (-1: none), slot int32 [T], table int32 [R + 1, NB], block_entries.  Returns int32 [T, P].  Class X.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op
from tandem.ops.aux_entry_slots import look_up

Tensor = torch.Tensor


@op("aux.map_entries", classes={"slots": "X"})
def map_entries(entries: Tensor, slot: Tensor, table: Tensor, block_entries: int) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    valid = (entries >= 0) & (slot >= 0).unsqueeze(-1)
    return look_up(entries, slot, table, block_entries, valid)

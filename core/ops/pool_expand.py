"""`pool_expand`: blocks of the candidate pool to entry indices.

Args: blocks[T,N] i32, block (b), lens[T] i32 -> entries[T,N*b] i32 ascending, -1 none

Reads blocks int32 [T, nb] ascending with -1 fill, block size b, lens int32 [T]. Returns int32 [T, nb * b]:
the entries of those blocks, ascending; -1 for missing blocks and entries >= lens.  Class X.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("pool_expand", classes={"entries": "X"}, attrs=("block",))
def pool_expand(blocks: Tensor, block: int, lens: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    offsets = torch.arange(block, device=blocks.device, dtype=torch.int32)
    entries = (blocks.unsqueeze(-1) * block + offsets).flatten(-2)
    valid = (blocks >= 0).repeat_interleave(block, dim=-1, output_size=entries.shape[1]) & (
        entries < lens.unsqueeze(-1)
    )
    return torch.where(valid, entries, torch.full_like(entries, -1))


@case("pool_expand", "some-missing", ROWS)
def _some(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    blocks = torch.from_numpy(draw.rng.permuted(np.tile(np.arange(6, dtype=np.int32), (rows, 1)), axis=1))
    blocks = blocks[:, :4].sort(dim=1).values
    blocks[::2, 3] = -1
    return {"blocks": blocks, "block": 8, "lens": draw.i32(0, 49, rows)}

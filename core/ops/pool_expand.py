"""`pool_expand`: blocks of the candidate pool to entry indices.

Reads blocks int32 [T, nb] ascending with -1 fill, block size b, lens int32 [T].
Returns int32 [T, nb * b]: the entries of those blocks, ascending; -1 for missing blocks and entries >= lens.  Class X.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op

Tensor = torch.Tensor


@op("pool_expand", classes={"entries": "X"}, attrs=("block",))
def pool_expand(blocks: Tensor, block: int, lens: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    offsets = torch.arange(block, device=blocks.device, dtype=torch.int32)
    entries = (blocks.unsqueeze(-1) * block + offsets).flatten(-2)
    valid = (blocks >= 0).repeat_interleave(block, dim=-1, output_size=entries.shape[1]) & (entries < lens.unsqueeze(-1))
    return torch.where(valid, entries, torch.full_like(entries, -1))

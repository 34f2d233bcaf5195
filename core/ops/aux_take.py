"""`aux.take`: pick columns of each row.

Reads a int32 [T, P] and index int32 [T, k]; returns int32 [T, k]: a[t, index[t, i]], -1 where index is -1.  Class X.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op

Tensor = torch.Tensor


@op("aux.take", classes={"values": "X"})
def take(a: Tensor, index: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    values = torch.gather(a, 1, index.clamp_min(0).to(torch.int64))
    return torch.where(index >= 0, values, torch.full_like(values, -1))

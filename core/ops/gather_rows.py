"""`gather_rows`: rows of an array by index.

Reads x [N, ...] and index int32 [T]; returns [T, ...]; index -1 gives zeros.  Class X.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op

Tensor = torch.Tensor


@op("gather_rows", classes={"rows": "X"})
def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    rows = x.index_select(0, index.clamp_min(0))
    keep = (index >= 0).view(-1, *([1] * (x.dim() - 1)))
    return torch.where(keep, rows, torch.zeros_like(rows))

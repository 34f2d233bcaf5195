"""`aux.group_start`: position of the first token of the group a row belongs to, which is its compressed entry's position.

Reads positions int32 [T], ratio r.  Returns int32 [T]: position - position % r.  Class X.
"""

from __future__ import annotations

import torch

from tandem.contract.opspec import op

Tensor = torch.Tensor


@op("aux.group_start", classes={"positions": "X"}, attrs=("ratio",))
def group_start(positions: Tensor, ratio: int) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    return positions - positions.remainder(ratio)

"""`aux.group_start`: position of the first token of the group a row belongs to, which is its compressed
entry's position.

Args: positions[T] i32, ratio -> [T] i32: p - p % r

Reads positions int32 [T], ratio r.  Returns int32 [T]: position - position % r.  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import FEW_ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("aux.group_start", classes={"positions": "X"}, attrs=("ratio",))
def group_start(positions: Tensor, ratio: int) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    return positions - positions.remainder(ratio)


@case("aux.group_start", "ratio-three", FEW_ROWS)
def _three(seed: int, rows: int) -> dict[str, Any]:
    return {"positions": Draw(seed).i32(0, 99, rows), "ratio": 3}

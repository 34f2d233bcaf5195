"""`aux.take`: pick columns of each row.

Args: a[T,P] i32, index[T,k] i32 -> [T,k] i32: a[t, index] (-1 stays)

Reads a int32 [T, P] and index int32 [T, k]; returns int32 [T, k]: a[t, index[t, i]], -1 where index is -1.
Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import FEW_ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("aux.take", classes={"values": "X"})
def take(a: Tensor, index: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    values = torch.gather(a, 1, index.clamp_min(0).to(torch.int64))
    return torch.where(index >= 0, values, torch.full_like(values, -1))


@case("aux.take", "some-missing", FEW_ROWS)
def _some(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {"a": draw.i32(-1, 99, rows, 11), "index": draw.i32(-1, 11, rows, 5)}

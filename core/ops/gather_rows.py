"""`gather_rows`: rows of an array by index.

Args: x[N,...], index[T] i32 -> [T,...]: rows, zeros for -1

Reads x [N, ...] and index int32 [T]; returns [T, ...]; index -1 gives zeros.  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw, PartlyUsed
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("gather_rows", classes={"rows": "X"})
def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    rows = x.index_select(0, index.clamp_min(0))
    keep = (index >= 0).view(-1, *([1] * (x.dim() - 1)))
    return torch.where(keep, rows, torch.zeros_like(rows))


@case("gather_rows", "some-missing", ROWS)
def _some(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {"x": draw.bf16(9, 24), "index": draw.i32(-1, 9, rows)}


@case("gather_rows", "more-axes-and-junk-in-row-zero")
def _axes(seed: int) -> dict[str, Any]:
    x = Draw(seed).f32(5, 3, 2)
    used = torch.tensor([False, True, True, True, True])[:, None, None]
    return {"x": PartlyUsed(x, used), "index": torch.tensor([4, -1, 2, 2], dtype=torch.int32)}

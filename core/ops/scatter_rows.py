"""`scatter_rows`: write rows of an array by index.

Args: x[N,...], index[T] i32, values[T,...] -> None; writes x (-1: its last row)

Reads values [N, ...] and index int32 [N] (distinct where >= 0); writes x[index[i]] = values[i].  Index -1
goes to the last row of x, which state arrays keep as scratch.  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("scatter_rows", classes={"x": "X"})
def scatter_rows(x: Tensor, index: Tensor, values: Tensor) -> None:
    """Plain-torch reference; see the module docstring."""
    x[index.to(torch.int64)] = values


@case("scatter_rows", "some-skipped")
def _some(seed: int) -> dict[str, Any]:
    draw = Draw(seed)
    index = torch.tensor([4, -1, 0, -1, 2], dtype=torch.int32)
    return {"x": draw.i32(0, 99, 6, 3), "index": index, "values": draw.i32(100, 199, 5, 3)}


@case("scatter_rows", "one-axis")
def _flat(seed: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {"x": draw.f32(4), "index": torch.tensor([1], dtype=torch.int32), "values": draw.f32(1)}

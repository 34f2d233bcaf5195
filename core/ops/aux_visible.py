"""`aux.visible`: compressed entries a row may see.

Args: positions[T] i32, slot[T] i32, ratio -> [T] i32: (p+1)//r, 0 for padding

Reads positions and slot int32 [T], ratio r.  Returns int32 [T]: (position + 1) // r, 0 for padding rows.
Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import FEW_ROWS, Draw
from tandem.contract.opspec import case, op

Tensor = torch.Tensor


@op("aux.visible", classes={"lens": "X"}, attrs=("ratio",))
def visible(positions: Tensor, slot: Tensor, ratio: int) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    lens = torch.div(positions + 1, ratio, rounding_mode="floor")
    return torch.where(slot >= 0, lens, torch.zeros_like(lens))


@case("aux.visible", "ratio-two", FEW_ROWS)
def _two(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {"positions": draw.i32(0, 99, rows), "slot": draw.i32(-1, 3, rows), "ratio": 2}


@case("aux.visible", "long-context")
def _long(seed: int) -> dict[str, Any]:
    """Positions that 16 bits, and the 24 of f32, do not hold."""
    positions = torch.tensor([255, 65_535, 65_536, 1_048_575, 16_777_217, 16_777_218], dtype=torch.int32)
    return {"positions": positions, "slot": Draw(seed).i32(0, 3, 6), "ratio": 4}

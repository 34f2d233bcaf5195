"""`moe_combine`: bring expert results back to their tokens.

Args: y[Te,H] bf16, batch (MoEBatch), shared[T,H] bf16 or None -> [T,H] bf16: f32 sum in k order, then shared,
one rounding

Reads y bf16 [Te, H], the `MoEBatch` it came from, shared bf16 [T, H] or None.  Returns bf16 [T, H]: f32 sum
over k in slot order, then the shared expert, one rounding.  Missing (token, k) pairs add nothing.  Class
U(1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import MoEBatch, QFormat

Tensor = torch.Tensor


@op("moe_combine", classes={"y": "U(1)"}, attrs=("k",))
def moe_combine(y: Tensor, batch: MoEBatch, shared: Tensor | None) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    source = batch.source
    total = y.new_zeros((source.shape[0], y.shape[1]), dtype=torch.float32)
    for i in range(source.shape[1]):
        rows = y.index_select(0, source[:, i].clamp_min(0)).to(torch.float32)
        total = total + torch.where((source[:, i] >= 0).unsqueeze(-1), rows, torch.zeros_like(rows))
    if shared is not None:
        total = total + shared.to(torch.float32)
    return total.to(torch.bfloat16)


@case("moe_combine", "with-shared", ROWS)
def _shared(seed: int, rows: int) -> dict[str, Any]:
    return _arguments(seed, rows) | {"shared": Draw(seed + 1).bf16(rows, 40)}


@case("moe_combine", "some-experts-elsewhere", ROWS)
def _missing(seed: int, rows: int) -> dict[str, Any]:
    arguments = _arguments(seed, rows)
    arguments["batch"].source[::2, 1] = -1
    return arguments | {"shared": None}


@case("moe_combine", "wide-rows")
def _wide(seed: int) -> dict[str, Any]:
    """Rows wider than one block of a sum."""
    return _arguments(seed, 3, 1100) | {"shared": Draw(seed + 1).bf16(3, 1100)}


def _arguments(seed: int, rows: int, width: int = 40) -> dict[str, Any]:
    """Three experts a token, served in random order."""
    draw = Draw(seed)
    source = torch.from_numpy(draw.rng.permutation(3 * rows).astype(np.int32)).view(rows, 3)
    ends = torch.tensor([rows, 3 * rows], dtype=torch.int32)
    x = draw.quantised(QFormat.MXFP8, 3 * rows, 32)
    return {"y": draw.bf16(3 * rows, width), "batch": MoEBatch(x, draw.f32(3 * rows), ends, source)}

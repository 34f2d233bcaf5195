"""`index_query`: rotate and quantise the indexer's queries.

Args: x[T,Hi*Di] bf16, heads, cos_sin[T,rd] f32 -> mxfp4 [T,Hi*Di]

Reads x bf16 [T, Hi*Di], heads, cos_sin f32 [T, rd]; returns mxfp4 [T, Hi*Di].  Composite of rope and
quantize.  Class Q.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


@op("index_query", classes={"q": "Q"}, parts=("rope", "quantize"), attrs=("heads", "dim", "rope_dim"))
def index_query(parts: Any, x: Tensor, heads: int, cos_sin: Tensor) -> QTensor:
    """Plain-torch reference; see the module docstring."""
    rotated = parts.rope(x.unflatten(-1, (heads, -1)), cos_sin).flatten(-2)
    query: QTensor = parts.quantize(rotated, QFormat.MXFP4)
    return query


@case("index_query", "two-heads", ROWS)
def _two(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    return {"x": draw.bf16(rows, 64), "heads": 2, "cos_sin": draw.cos_sin(rows, 16)}


@case("index_query", "several-tiles")
def _many(seed: int) -> dict[str, Any]:
    """Rows of several tiles, the last one not full, and heads that lie in two."""
    draw = Draw(seed)
    return {"x": draw.bf16(3, 288), "heads": 3, "cos_sin": draw.cos_sin(3, 16)}

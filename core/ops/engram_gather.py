"""`engram_gather`: rows of the Engram table as a quantised activation, stored bytes untouched.

Args: rows[T,N] i64, table (weight), first_row (of the range held) -> mxfp8 [T,N*dim] (stored bytes)

Reads rows int64 [T, n], the packed table [rows, dim] (e4m3 with one ue8m0 scale per 32 dims) and the row
range it owns. Returns mxfp8 [T, n * dim].  Every row asked for lies in the range.  Class X.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw, WeightInput
from tandem.contract.opspec import case, op
from tandem.contract.types import CanonicalWeight, PackedWeight, QFormat, QTensor, WeightKind

Tensor = torch.Tensor


@op("engram_gather", classes={"q": "X"}, parts=("unpack_weight", "from_canonical"), attrs=("dim",))
def engram_gather(parts: Any, rows: Tensor, table: PackedWeight, first_row: int) -> QTensor:
    """Plain-torch reference; see the module docstring."""
    stored = parts.unpack_weight(table)
    index = rows.flatten() - first_row
    codes, scales = (
        part.view(torch.uint8).index_select(0, index).view(rows.shape[0], rows.shape[1] * part.shape[1])
        for part in (stored.data, stored.scale)
    )
    q: QTensor = parts.from_canonical(QTensor(codes, scales, QFormat.MXFP8, tuple(codes.shape)))
    return q


@case("engram_gather", "a-range-of-rows", ROWS)
def _range(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    data, scale = draw.codes(QFormat.MXFP8, 50, 32), draw.scales(QFormat.MXFP8, 50, 1)
    table = WeightInput(WeightKind.ENGRAM, CanonicalWeight(data, scale, QFormat.MXFP8), (50, 32))
    index = draw.i32(100, 150, rows, 6).to(torch.int64)
    index[0, 0], index[-1, -1] = 100, 149
    return {"rows": index, "table": table, "first_row": 100}

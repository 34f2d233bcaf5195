"""`embed`: token rows of the embedding table, some replaced by given rows.

Args: ids[T] i32, table (weight [V,H]), override[N,H] f32 or bf16 or None, override_index[T] i32 (-1 none) ->
[T,H] bf16

Reads ids int32 [T], the packed table [V, H], override f32 or bf16 [N, H] and override_index int32 [T] (-1:
use the table). Returns bf16 [T, H].  An id outside [0, V) is a caller's bug; padding rows carry id 0.  Class
X. Source: model definition, input embedding; image rows replace placeholder rows.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import PackedWeight, QFormat, WeightKind
from tandem.ops.numerics import decode_weight

Tensor = torch.Tensor


@op("embed", classes={"x": "X"}, parts=("unpack_weight",), attrs=("w",))
def embed(
    parts: Any,
    ids: Tensor,
    table: PackedWeight,
    override: Tensor | None = None,
    override_index: Tensor | None = None,
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    rows = decode_weight(parts.unpack_weight(table)).index_select(0, ids).to(torch.bfloat16)
    return apply_override(rows, override, override_index)


def apply_override(rows: Tensor, override: Tensor | None, index: Tensor | None) -> Tensor:
    """Replace row t by override[index[t]] where index[t] >= 0."""
    if override is None or index is None:
        return rows
    replaced = override.index_select(0, index.clamp_min(0)).to(rows.dtype)
    return torch.where((index >= 0).unsqueeze(-1), replaced, rows)


@case("embed", "plain", ROWS)
def _plain(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    ids = draw.i32(0, 40, rows)
    ids[0], ids[-1] = 39, 0
    return {"ids": ids, "table": draw.weight(WeightKind.EMBED, QFormat.BF16, 40, 64)}


@case("embed", "some-rows-replaced", ROWS)
def _replaced(seed: int, rows: int) -> dict[str, Any]:
    draw = Draw(seed)
    chosen = {"override": draw.f32(3, 64), "override_index": draw.i32(-1, 3, rows)}
    return _plain(seed, rows) | chosen


@case("embed", "bf16-rows-replaced")
def _replaced_bf16(seed: int) -> dict[str, Any]:
    arguments = _replaced(seed, 17)
    return arguments | {"override": arguments["override"].to(torch.bfloat16)}

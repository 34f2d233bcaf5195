"""`index_scores_at`: lightning-indexer scores of given entries, the second level of candidate selection.

Args: q mxfp4 [T,Hi*Di], w[T,Hi] bf16, cache, table[R+1,NB] i32, row_slot[T] i32, entries[T,P] i32 (-1 none) ->
[T,P] bf16

As `index_scores`, for entries int32 [T, P] (-1: none, gives -inf).  Returns bf16 [T, P].  Class A.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.cases import FEW_ROWS, Draw
from tandem.contract.opspec import case, op
from tandem.contract.types import KVCache, QTensor
from tandem.ops.index_scores import paged_arguments, score_entries

Tensor = torch.Tensor


@op(
    "index_scores_at",
    classes={"scores": "A"},
    parts=("kv_load", "to_canonical", "aux.map_entries"),
    attrs=("heads", "dim", "fmt", "layout"),
    passes=(("kv_load", {"fmt": "fmt", "dim": "dim", "layout": "layout"}),),
)
def index_scores_at(
    parts: Any, q: QTensor, w: Tensor, cache: KVCache, table: Tensor, row_slot: Tensor, entries: Tensor
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    return score_entries(parts, q, w, cache, table, row_slot, entries)


@case("index_scores_at", "some-missing", FEW_ROWS)
def _some(seed: int, rows: int) -> dict[str, Any]:
    entries = Draw(seed + 1).i32(-1, 24, rows, 9)
    entries[:, 2:5] = -1
    return paged_arguments(seed, rows) | {"entries": entries}

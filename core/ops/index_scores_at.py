"""`index_scores_at`: lightning-indexer scores of given entries, the second level of candidate selection.

As `index_scores`, for entries int32 [T, P] (-1: none, gives -inf).  Returns bf16 [T, P].  Class A.
"""

from __future__ import annotations

from typing import Any

import torch

from tandem.contract.opspec import op
from tandem.contract.types import KVCache, QTensor
from tandem.ops.index_scores import score_entries

Tensor = torch.Tensor


@op(
    "index_scores_at",
    classes={"scores": "A"},
    parts=("kv_load", "to_canonical", "aux.map_entries"),
    attrs=("heads", "dim", "fmt"),
)
def index_scores_at(
    parts: Any, q: QTensor, w: Tensor, cache: KVCache, table: Tensor, row_slot: Tensor, entries: Tensor
) -> Tensor:
    """Plain-torch reference; see the module docstring."""
    return score_entries(parts, q, w, cache, table, row_slot, entries)

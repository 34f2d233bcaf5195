"""`index_scores_at`: see csrc/cpu/ops/index_scores_at.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels import _indexer
from tandem.contract.types import KVCache, QTensor

Tensor = torch.Tensor


def index_scores_at(q: QTensor, w: Tensor, cache: KVCache, table: Tensor, row_slot: Tensor, entries: Tensor) -> Tensor:
    """See core/ops/index_scores_at.py."""
    sizes = _indexer.sizes("index_scores_at", q, w, cache, table, entries.shape[1])
    scores = temporary.empty(entries.shape, dtype=torch.bfloat16)
    arrays = (q.data, q.scale, w, cache.data, table, row_slot, entries, scores, *_indexer.room(*sizes[:3]))
    native.run("index_scores_at", *arrays, *sizes)
    return scores


OPS: dict[str, Any] = {"index_scores_at": index_scores_at}

"""`index_scores`: see csrc/cpu/ops/index_scores.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels import _indexer
from tandem.contract.types import KVCache, QTensor

Tensor = torch.Tensor


def index_scores(
    q: QTensor, w: Tensor, cache: KVCache, table: Tensor, row_slot: Tensor, lens: Tensor, width: int
) -> Tensor:
    """See core/ops/index_scores.py."""
    sizes = _indexer.sizes("index_scores", q, w, cache, table, width)
    scores = temporary.empty((sizes[0], width), dtype=torch.bfloat16)
    arrays = (q.data, q.scale, w, cache.data, table, row_slot, lens, scores, *_indexer.room(*sizes[:3]))
    native.run("index_scores", *arrays, *sizes)
    return scores


OPS: dict[str, Any] = {"index_scores": index_scores}

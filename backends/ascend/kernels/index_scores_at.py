"""`index_scores_at`: see csrc/ascend/index_scores_at.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _indexer
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import KVCache, QTensor

Tensor = torch.Tensor


def index_scores_at(q: QTensor, w: Tensor, cache: KVCache, table: Tensor, row_slot: Tensor, entries: Tensor) -> Tensor:
    """See core/ops/index_scores_at.py."""
    sizes = _indexer.sizes("index_scores_at", q, w, cache, table)
    rows, width = entries.shape
    out = w.new_empty((rows, width))
    arrays = (q.data, q.scale, w, cache.data, table, row_slot, entries, out)
    native.run("index_scores_at", *arrays, rows, width, *sizes)
    return out


def _plan(
    device: Device, q: QTensor, w: Tensor, cache: KVCache, table: Tensor, row_slot: Tensor, entries: Tensor
) -> list[Plan]:
    """Rows are scored one by one."""
    rows, width = entries.shape
    return _indexer.plan(device, 1, w, cache, rows, width, listed=4)


OPS: dict[str, Any] = {"index_scores_at": index_scores_at}
PLAN: dict[str, Any] = {"index_scores_at": _plan}

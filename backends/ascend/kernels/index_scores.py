"""`index_scores`: see csrc/ascend/index_scores.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _indexer
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import KVCache, QTensor

Tensor = torch.Tensor


def index_scores(
    q: QTensor, w: Tensor, cache: KVCache, table: Tensor, row_slot: Tensor, lens: Tensor, width: int
) -> Tensor:
    """See core/ops/index_scores.py."""
    sizes = _indexer.sizes("index_scores", q, w, cache, table)
    out = w.new_empty((w.shape[0], width))
    arrays = (q.data, q.scale, w, cache.data, table, row_slot, lens, out)
    native.run("index_scores", *arrays, w.shape[0], width, *sizes)
    return out


def _plan(
    device: Device,
    q: QTensor,
    w: Tensor,
    cache: KVCache,
    table: Tensor,
    row_slot: Tensor,
    lens: Tensor,
    width: int,
) -> list[Plan]:
    """Rows of as many requests as there can be."""
    requests = min(w.shape[0], table.shape[0] - 1)
    return _indexer.plan(device, _indexer.MOST_ROWS, w, cache, requests, width)


OPS: dict[str, Any] = {"index_scores": index_scores}
PLAN: dict[str, Any] = {"index_scores": _plan}

"""`topk_index`: the selection of `_select`, nothing else."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cuda.kernels._select import best_indices, traffic

Tensor = torch.Tensor


def topk_index(scores: Tensor, k: int) -> Tensor:
    """See core/ops/topk_index.py."""
    return best_indices(scores, k)


def _traffic(scores: Tensor, k: int) -> tuple[int, int]:
    """What the selection moves."""
    return traffic(scores, k)


OPS: dict[str, Any] = {"topk_index": topk_index}
TRAFFIC: dict[str, Any] = {"topk_index": _traffic}
WHY: dict[str, str] = {
    "topk_index": "rows are cut so that all processors work; the best of each tile are written and read again"
}

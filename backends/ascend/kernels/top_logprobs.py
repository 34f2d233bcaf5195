"""`top_logprobs`: what `topk_index` selects goes to its rank, see csrc/ascend/top_logprobs.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import topk_index
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def top_logprobs(values: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """See core/ops/top_logprobs.py."""
    rows, width = values.shape
    index = topk_index.topk_index(values, n)
    ids, logprobs = torch.empty_like(index), values.new_empty((rows, n))
    native.run("top_logprobs", values, index, ids, logprobs, rows, width, n)
    return ids, logprobs


def _plan(device: Device, values: Tensor, n: int) -> list[Plan]:
    """The selection, then the chosen values once; each place in UB is compared with all."""
    rows, chosen = values.shape[0], values.shape[0] * n
    launches = topk_index.PLAN["topk_index"](device, values, n)
    if not rows:
        return []
    ranks = Plan("vector", rows, min(rows, device.vector_cores), chosen * 8, chosen * 8, rows * (2 * n + n * n) * 4)
    return [*launches, ranks]


OPS: dict[str, Any] = {"top_logprobs": top_logprobs}
PLAN: dict[str, Any] = {"top_logprobs": _plan}
WHY: dict[str, str] = {"top_logprobs": topk_index.WHY["topk_index"]}

"""`aux.draft_commit`: vector cores copy pieces of the weights that the requests' drafts were drawn by."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor
PIECE = 8192  # weights copied at a time


def draft_commit(
    slots: Tensor,
    column: int,
    token: Tensor,
    weight: Tensor,
    confidence: Tensor,
    drafts: Tensor,
    proposal: Tensor,
    rates: Tensor,
) -> None:
    """See core/ops/aux_draft_commit.py."""
    requests, width = weight.shape
    inputs = (slots, token, weight, confidence)
    native.run("aux_draft_commit", *inputs, drafts, proposal, rates, requests, width, drafts.shape[1], column)


def _plan(device: Device, weight: Tensor, **others: Any) -> list[Plan]:
    """The weights, in and out of UB, and a slot, a token and one or two rates of each request."""
    requests, width = weight.shape
    tasks, copied = requests * -(-width // PIECE), requests * width * 4
    blocks = min(tasks, device.vector_cores)
    return [Plan("vector", tasks, blocks, copied + requests * 16, copied + requests * 8, ub=2 * copied)] * (tasks > 0)


OPS: dict[str, Any] = {"aux.draft_commit": draft_commit}
PLAN: dict[str, Any] = {"aux.draft_commit": _plan}

"""`aux.draft_rows`: a SIMT thread takes a key, each (request, row, key of the row's block)."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def draft_rows(
    anchor: Tensor, position: Tensor, slot: Tensor, block: int, noise: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See core/ops/aux_draft_rows.py."""
    requests = anchor.shape[0]
    ids, positions, row_slot, context, own = (anchor.new_empty((requests, block)) for _ in range(5))
    keys = anchor.new_empty((requests, block, block))
    outputs = (ids, positions, row_slot, context, own, keys)
    native.run("aux_draft_rows", anchor, position, slot, *outputs, requests, block, noise)
    return outputs


def _plan(device: Device, anchor: Tensor, block: int, **others: Any) -> list[Plan]:
    """Three numbers of each request, five of each row, and its keys."""
    requests = anchor.shape[0]
    return _grid.plan(device, requests * block * block, requests * 12, requests * block * (5 + block) * 4)


OPS: dict[str, Any] = {"aux.draft_rows": draft_rows}
PLAN: dict[str, Any] = {"aux.draft_rows": _plan}

"""`aux.verify_rows`: drafts are ranked by warps, each for one request; then rows are placed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


LANES = 32  # of the warp that takes a request


def verify_rows(
    slots: Tensor, rates: Tensor, drafts: Tensor, length: Tensor, limit: Tensor, most: Tensor, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See core/ops/aux_verify_rows.py."""
    requests, block = slots.shape[0], drafts.shape[1]
    counts = torch.empty_like(slots)
    slot, offset, chunk_start, chunk_end = (slots.new_empty((rows,)) for _ in range(4))
    outputs = (slot, offset, chunk_start, chunk_end, counts)
    native.run("aux_verify_rows", slots, rates, drafts, length, limit, most, *outputs, requests, block, rows)
    return outputs


def _plan(device: Device, slots: Tensor, drafts: Tensor, rows: int, **others: Any) -> list[Plan]:
    """The state of each request once: cores read it together.

    Rates lie in UB; all lanes of a warp read that of a draft twice, and compare it with all.
    """
    requests, block = slots.shape[0], drafts.shape[1]
    lanes, numbers = requests * LANES, requests * block
    share = _grid.plan(device, lanes, requests * (16 + block * 8), requests * 4)
    kept = [replace(plan, ub=4 * numbers * (plan.blocks + numbers + 2 * LANES)) for plan in share]
    return kept + _grid.plan(device, max(lanes, rows), requests * 8, rows * 16)


OPS: dict[str, Any] = {"aux.verify_rows": verify_rows}
PLAN: dict[str, Any] = {"aux.verify_rows": _plan}

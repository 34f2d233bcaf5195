"""`aux.step_inputs`: a SIMT thread takes a row and chooses host or device values."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import native
from tandem.backends.ascend.kernels import _grid
from tandem.backends.ascend.plan import Device, Plan

Tensor = torch.Tensor


def step_inputs(
    host_ids: Tensor,
    host_positions: Tensor,
    from_device: Tensor,
    host_slot: Tensor,
    last_token: Tensor,
    length: Tensor,
    limit: Tensor,
    drafts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See core/ops/aux_step_inputs.py."""
    outputs = torch.empty_like(host_ids), torch.empty_like(host_ids), torch.empty_like(host_ids)
    inputs = (host_ids, host_positions, from_device, host_slot, last_token, length, limit, drafts)
    block = 0 if drafts is None else drafts.shape[1]
    native.run("aux_step_inputs", *inputs, *outputs, host_ids.shape[0], block)
    return outputs


def _plan(device: Device, host_ids: Tensor, length: Tensor, **others: Any) -> list[Plan]:
    """Four host values of each row and three of its request, which the rows of a chunk share."""
    rows = host_ids.shape[0]
    return _grid.plan(device, rows, rows * 16 + min(rows, length.shape[0] - 1) * 12, rows * 12)


OPS: dict[str, Any] = {"aux.step_inputs": step_inputs}
PLAN: dict[str, Any] = {"aux.step_inputs": _plan}

"""`aux.step_inputs`: see csrc/cpu/ops/aux_step_inputs.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require

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
    rows, entries = host_ids.shape[0], length.shape[0]
    block = 0 if drafts is None else drafts.shape[1]
    one, all_slots = (rows,), (entries,)
    require("aux.step_inputs", *((array, one) for array in (host_positions, from_device, host_slot)))
    require("aux.step_inputs", (last_token, all_slots), (limit, all_slots), (drafts, (entries, block)))
    ids, positions, slot = (temporary.empty(one, dtype=torch.int32) for _ in range(3))
    inputs = (host_ids, host_positions, from_device, host_slot, last_token, length, limit, drafts)
    native.run("aux_step_inputs", *inputs, ids, positions, slot, rows, entries, block)
    return ids, positions, slot


OPS: dict[str, Any] = {"aux.step_inputs": step_inputs}

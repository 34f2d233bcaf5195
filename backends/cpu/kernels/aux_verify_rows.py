"""`aux.verify_rows`: see csrc/cpu/ops/aux_verify_rows.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require

Tensor = torch.Tensor


def verify_rows(
    slots: Tensor, rates: Tensor, drafts: Tensor, length: Tensor, limit: Tensor, most: Tensor, rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See core/ops/aux_verify_rows.py."""
    requests, (entries, block) = slots.shape[0], drafts.shape
    by_slot = (entries,)
    require("aux.verify_rows", (rates, (entries, block)), (length, by_slot), (limit, by_slot), (most, (requests,)))
    slot, offset, chunk_start, chunk_end = (temporary.empty((rows,), dtype=torch.int32) for _ in range(4))
    counts, left = temporary.empty((requests,), dtype=torch.int32), temporary.empty((requests,), dtype=torch.int32)
    rate = temporary.empty((requests,), dtype=torch.float32)
    outputs = (slot, offset, chunk_start, chunk_end, counts)
    state = (slots, rates, drafts, length, limit, most)
    native.run("aux_verify_rows", *state, *outputs, left, rate, requests, entries, block, rows)
    return outputs


OPS: dict[str, Any] = {"aux.verify_rows": verify_rows}

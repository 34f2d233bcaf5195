"""`aux.draft_rows`: see csrc/cpu/ops/aux_draft_rows.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require

Tensor = torch.Tensor


def draft_rows(
    anchor: Tensor, position: Tensor, slot: Tensor, block: int, noise: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See core/ops/aux_draft_rows.py."""
    rows = anchor.shape[0]
    require("aux.draft_rows", (position, (rows,)), (slot, (rows,)))
    ids, positions, row_slot, context, own = (temporary.empty((rows, block), dtype=torch.int32) for _ in range(5))
    keys = temporary.empty((rows, block, block), dtype=torch.int32)
    outputs = (ids, positions, row_slot, context, own, keys)
    native.run("aux_draft_rows", anchor, position, slot, *outputs, rows, block, noise)
    return outputs


OPS: dict[str, Any] = {"aux.draft_rows": draft_rows}

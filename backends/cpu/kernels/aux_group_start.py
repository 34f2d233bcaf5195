"""`aux.group_start`: see csrc/cpu/ops/aux_group_start.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary

Tensor = torch.Tensor


def group_start(positions: Tensor, ratio: int) -> Tensor:
    """See core/ops/aux_group_start.py."""
    starts = temporary.empty(positions.shape, dtype=torch.int32)
    native.run("aux_group_start", positions, starts, positions.shape[0], ratio)
    return starts


OPS: dict[str, Any] = {"aux.group_start": group_start}

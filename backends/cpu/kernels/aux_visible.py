"""`aux.visible`: see csrc/cpu/ops/aux_visible.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary

Tensor = torch.Tensor


def visible(positions: Tensor, slot: Tensor, ratio: int) -> Tensor:
    """See core/ops/aux_visible.py."""
    lens = temporary.empty(positions.shape, dtype=torch.int32)
    native.run("aux_visible", positions, slot, lens, positions.shape[0], ratio)
    return lens


OPS: dict[str, Any] = {"aux.visible": visible}

"""`aux.take`: see csrc/cpu/ops/aux_take.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require

Tensor = torch.Tensor


def take(a: Tensor, index: Tensor) -> Tensor:
    """See core/ops/aux_take.py."""
    (rows, k), width = index.shape, a.shape[1]
    require("aux.take", (a, (rows, width)))
    values = temporary.empty((rows, k), dtype=torch.int32)
    native.run("aux_take", a, index, values, rows, width, k)
    return values


OPS: dict[str, Any] = {"aux.take": take}

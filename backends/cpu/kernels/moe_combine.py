"""`moe_combine`: see csrc/cpu/ops/moe_combine.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require
from tandem.contract.types import MoEBatch

Tensor = torch.Tensor


def moe_combine(y: Tensor, batch: MoEBatch, shared: Tensor | None) -> Tensor:
    """See core/ops/moe_combine.py."""
    (served, width), (rows, k) = y.shape, batch.source.shape
    require("moe_combine", (shared, (rows, width)))
    out = temporary.empty((rows, width), dtype=torch.bfloat16)
    native.run("moe_combine", y, batch.source, shared, out, served, rows, width, k)
    return out


OPS: dict[str, Any] = {"moe_combine": moe_combine}

"""`hc_collapse`: see csrc/cpu/ops/hc_collapse.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require

Tensor = torch.Tensor


def hc_collapse(trunk: Tensor, pre: Tensor) -> Tensor:
    """See core/ops/hc_collapse.py."""
    rows, m, width = trunk.shape
    require("hc_collapse", pre=(pre, (rows, m)))
    x = temporary.empty((rows, width), dtype=torch.bfloat16)
    native.run("hc_collapse", trunk.contiguous(), pre, x, rows, m, width)
    return x


OPS: dict[str, Any] = {"hc_collapse": hc_collapse}

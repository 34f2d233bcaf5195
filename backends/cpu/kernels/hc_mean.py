"""`hc_mean`: see csrc/cpu/ops/hc_mean.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary

Tensor = torch.Tensor


def hc_mean(trunk: Tensor) -> Tensor:
    """See core/ops/hc_mean.py."""
    rows, m, width = trunk.shape
    x = temporary.empty((rows, width), dtype=torch.bfloat16)
    native.run("hc_mean", trunk.contiguous(), x, rows, m, width)
    return x


OPS: dict[str, Any] = {"hc_mean": hc_mean}

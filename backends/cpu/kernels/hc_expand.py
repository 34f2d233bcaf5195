"""`hc_expand`: see csrc/cpu/ops/hc_expand.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary

Tensor = torch.Tensor


def hc_expand(x: Tensor, m: int) -> Tensor:
    """See core/ops/hc_expand.py."""
    rows, width = x.shape
    trunk = temporary.empty((rows, m, width), dtype=torch.bfloat16)
    native.run("hc_expand", x.contiguous(), trunk, rows, m, width)
    return trunk


OPS: dict[str, Any] = {"hc_expand": hc_expand}

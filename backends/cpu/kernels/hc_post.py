"""`hc_post`: see csrc/cpu/ops/hc_post.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels._shapes import require

Tensor = torch.Tensor


def hc_post(y: Tensor, trunk: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """See core/ops/hc_post.py."""
    rows, m, width = trunk.shape
    require("hc_post", y=(y, (rows, width)), post=(post, (rows, m)), comb=(comb, (rows, m, m)))
    mixed = temporary.empty((rows, m, width), dtype=torch.bfloat16)
    native.run("hc_post", y.contiguous(), trunk.contiguous(), post, comb, mixed, rows, m, width)
    return mixed


OPS: dict[str, Any] = {"hc_post": hc_post}

"""`rope`: see csrc/cpu/ops/rope.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import native, temporary
from tandem.backends.cpu.kernels import _shapes

Tensor = torch.Tensor


def rope(x: Tensor, cos_sin: Tensor, inverse: bool = False) -> Tensor:
    """See core/ops/rope.py."""
    _shapes.require("rope", cos_sin=(cos_sin, (x.shape[0], cos_sin.shape[-1])))
    x, y = x.contiguous(), temporary.empty(x.shape, dtype=torch.bfloat16)
    native.run("rope", x, cos_sin, y, *x.shape, cos_sin.shape[1], int(inverse))
    return y


OPS: dict[str, Any] = {"rope": rope}

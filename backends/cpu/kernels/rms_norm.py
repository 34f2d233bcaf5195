"""`rms_norm`: see csrc/cpu/ops/rms_norm.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native, temporary
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, quant: bool) -> tuple[Tensor, QTensor | None]:
    """See core/ops/rms_norm.py."""
    rows, width = x.shape
    x, y = x.contiguous(), temporary.empty((rows, width), dtype=torch.bfloat16)
    q = activations.empty("rms_norm", (rows, width), QFormat.MXFP8) if quant else None
    codes, scales = (None, None) if q is None else (q.data, q.scale)
    native.run("rms_norm", x, weight, y, codes, scales, rows, width, eps)
    return y, q


OPS: dict[str, Any] = {"rms_norm": rms_norm}

"""`dequantize`: see csrc/cpu/ops/dequantize.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native, temporary
from tandem.contract.types import QTensor

Tensor = torch.Tensor


def dequantize(q: QTensor) -> Tensor:
    """See core/ops/dequantize.py."""
    activations.canonical("dequantize", q)
    rows, width = q.shape
    x = temporary.empty((rows, width), dtype=torch.bfloat16)
    native.run("dequantize", q.data, q.scale, x, rows, width, activations.FORMATS[q.fmt])
    return x


OPS: dict[str, Any] = {"dequantize": dequantize}

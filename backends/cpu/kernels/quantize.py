"""`quantize`: see csrc/cpu/ops/quantize.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


def quantize(x: Tensor, fmt: QFormat) -> QTensor:
    """See core/ops/quantize.py."""
    rows, width = x.shape
    q = activations.empty("quantize", (rows, width), fmt)
    native.run("quantize", x.contiguous(), q.data, q.scale, rows, width, activations.FORMATS[fmt])
    return q


OPS: dict[str, Any] = {"quantize": quantize}

"""`swiglu_quant`: see csrc/cpu/ops/swiglu_quant.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.cpu import activations, native
from tandem.backends.cpu.kernels._shapes import require
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


def swiglu_quant(gate: Tensor, up: Tensor, limit: float, weight: Tensor | None = None) -> QTensor:
    """See core/ops/swiglu_quant.py."""
    rows, width = gate.shape
    require("swiglu_quant", up=(up, (rows, width)))
    if weight is not None:
        require("swiglu_quant", weight=(weight, (rows,)))
    q = activations.empty("swiglu_quant", (rows, width), QFormat.MXFP8)
    native.run("swiglu_quant", gate.contiguous(), up.contiguous(), weight, q.data, q.scale, rows, width, limit)
    return q


OPS: dict[str, Any] = {"swiglu_quant": swiglu_quant}

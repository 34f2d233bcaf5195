"""`swiglu_quant`: see csrc/ascend/swiglu_quant.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import activations, native
from tandem.backends.ascend.kernels import _rows
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


def swiglu_quant(gate: Tensor, up: Tensor, limit: float, weight: Tensor | None = None) -> QTensor:
    """See core/ops/swiglu_quant.py."""
    rows, width = gate.shape
    q = activations.quantised(rows, width, QFormat.MXFP8, gate.device)
    native.run("swiglu_quant", gate, up, weight, q.data, q.scale, rows, width, limit)
    return q


def _plan(device: Device, gate: Tensor, up: Tensor, limit: float, weight: Tensor | None = None) -> list[Plan]:
    rows, width = gate.shape
    read = rows * (width * 4 + (0 if weight is None else 4))
    written = _rows.quantised_bytes(rows, width, QFormat.MXFP8)
    product = _rows.steps(width) * _rows.STEP * (2 + 2 + 4)
    loaded = 2 * _rows.units(width * 2) + (0 if weight is None else 32 + 4)
    ub = rows * (loaded + product + _rows.encode_ub(width, QFormat.MXFP8, 4)) + written
    return _rows.plan(device, rows, read, written, ub)


OPS: dict[str, Any] = {"swiglu_quant": swiglu_quant}
PLAN: dict[str, Any] = {"swiglu_quant": _plan}

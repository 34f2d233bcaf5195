"""`quantize`: see csrc/ascend/quantize.cpp."""

from __future__ import annotations

from typing import Any

import torch

from tandem.backends.ascend import activations, native
from tandem.backends.ascend.kernels import _rows
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import QFormat, QTensor

Tensor = torch.Tensor


def quantize(x: Tensor, fmt: QFormat) -> QTensor:
    """See core/ops/quantize.py."""
    rows, width = x.shape
    q = activations.quantised(rows, width, fmt, x.device)
    native.run("quantize", x, q.data, q.scale, rows, width, _rows.FORMATS[fmt])
    return q


def _plan(device: Device, x: Tensor, fmt: QFormat) -> list[Plan]:
    rows, width = x.shape
    written = _rows.quantised_bytes(rows, width, fmt)
    ub = rows * (_rows.units(width * 2) + _rows.encode_ub(width, fmt, 2)) + written
    return _rows.plan(device, rows, rows * width * 2, written, ub)


OPS: dict[str, Any] = {"quantize": quantize}
PLAN: dict[str, Any] = {"quantize": _plan}
